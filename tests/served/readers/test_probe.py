"""Waves of a probe are runs, and disturbed ones are left out with their reason."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.probe.record import Probed, Wave, append, read_probe
from evict_profile.served.readers import read, read_runs
from evict_profile.served.readers.probe import ADAPTIVE, BUSY, SLOWED
from tests.served.readers.reading import SAMPLES

PROBED, WAVES = read_probe(SAMPLES / "probe.jsonl")[1]


def written(folder, waves, **changes):
    path = folder / "runs.jsonl"
    append(path, replace(PROBED, server=replace(PROBED.server, **changes)))
    for wave in waves:
        append(path, wave)
    return path


def test_waves_are_runs():
    found = read(SAMPLES / "probe.jsonl")
    plain = [run for run in found.runs if not run.drafts]
    assert {run.step_us for run in plain} == {10_000.0}
    chain = next(run for run in found.runs if run.drafts and run.batch == 4)
    assert chain.step_us == pytest.approx(2.4 / 120 * 1e6)
    assert chain.accept_lengths == {3: 2.4} and chain.text == "chat"
    known = chain.deployment
    assert (known.engine, known.tp, known.host) == ("sglang", 1, "localhost")
    assert "speculative_algorithm" not in known.flags
    assert chain.load.drafted == 3.0


def test_busy_and_slow_waves_are_left_out():
    """Others ran beside a plain wave; the third round with drafts was slow."""
    found = read(SAMPLES / "probe.jsonl")
    assert sorted(found.left_out.values()) == sorted([BUSY, SLOWED, SLOWED])
    assert len(found.runs) == 12 - 3


def test_a_wave_that_drafts_otherwise_is_left_out(tmp_path):
    waves = [replace(WAVES[0], drafted=drafted) for drafted in (3.0, 3.0, 2.2)]
    [why] = read(written(tmp_path, waves)).left_out.values()
    assert why == "2.20 tokens were drafted a step, and 3 usually"


def test_another_k_at_a_batch_is_a_chain_of_it(tmp_path):
    waves = [replace(WAVES[0], drafted=2.0, accepted=1.9)]
    [run] = read_runs(written(tmp_path, waves))
    assert (run.drafts, run.levels, run.accept_lengths) == (2, 2, {2: 1.9})


def test_k_that_is_no_whole_number_stays_in_the_load(tmp_path):
    waves = [replace(WAVES[0], drafted=1.5)]
    [run] = read_runs(written(tmp_path, waves))
    assert (run.drafts, run.load.drafted) == (2, 1.5)


def test_a_server_that_changes_k_has_no_runs(tmp_path):
    found = read(written(tmp_path, WAVES[:2], adaptive=True))
    assert not found.runs and set(found.left_out.values()) == {ADAPTIVE}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"accepted": None}, "show no step: no accepted length"),
        ({"tokens_per_s": 0.0}, "show no step: replies of"),
        ({"others": 2}, "show no step: requests of others"),
    ],
)
def test_waves_without_a_step_are_refused(tmp_path, changes, says):
    path = written(tmp_path, [replace(WAVES[0], **changes)])
    with pytest.raises(ConfigError, match=says):
        read(path)


def test_a_server_without_waves_holds_no_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        read(written(tmp_path, []))


def test_k_of_a_probe_is_not_typed():
    with pytest.raises(ConfigError, match="a probe states K"):
        read(SAMPLES / "probe.jsonl", 3)


def test_servers_are_told_apart(tmp_path):
    append(tmp_path / "runs.jsonl", Probed(PROBED.server, "raw"))
    append(tmp_path / "runs.jsonl", Wave(1, 1, 120.0, 2.4, 5.0, 0, 0, 1, 3.0))
    [run] = read_runs(tmp_path / "runs.jsonl")
    assert run.text == "raw"
