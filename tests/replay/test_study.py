"""The whole replay, and the command that starts it."""

import json
from functools import partial
from typing import get_args
from unittest.mock import patch

import pytest

from evict_profile.cli.replay import Synthetic
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace
from evict_profile.replay.policies import FULL_TREE
from evict_profile.replay.study import SCHEMA, replay_study, replayed_trace
from evict_profile.replay.synthetic import MIXES, synthetic_trace
from evict_profile.table import CostTable
from tests.command import evict
from tests.traces.synthetic import TINY, Plan, write_trace


def studied(traces, table, synthetic="", workloads=()):
    covered = CostTable.load(table)
    trace = replayed_trace(traces, synthetic, covered, workloads)
    return replay_study(trace, covered, [1], 1, lambda _: None)


@pytest.mark.slow
def test_command_writes_verdict_page_and_numbers(trace_file, saved_table, tmp_path):
    done = evict(
        "replay", saved_table, trace_file, "--batch", 2, "--batch", 1,
        "--seeds", 1, "--out", "page.html", "--json", "numbers.json", folder=tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "replaying mixed, temperature 0, batch 2" in done.stderr
    assert "<svg" in (tmp_path / "page.html").read_text()
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found["schema"] == SCHEMA
    choices = [each["verdict"]["choice"] for each in found["scenarios"]]
    assert len(choices) == 6 and all(choices)
    assert found["summary"] in " ".join(done.stdout.split())


def test_the_command_takes_every_synthetic_mix():
    """It lists them itself, since their module loads libraries."""
    assert get_args(Synthetic) == tuple(MIXES)


def test_a_synthetic_mix_is_replayed_like_a_trace(saved_table):
    few = partial(synthetic_trace, prompts=5, tokens=6)
    with patch("evict_profile.replay.study.synthetic_trace", few):
        found = studied(None, saved_table, synthetic="bursts")
    assert found.about.model == "synthetic"
    assert [each.scenario.workload for each in found.comparisons] == ["bursts"]
    assert any("no routes" in each for each in found.comparisons[0].caveats)


def test_unbounded_intervals_are_null(tmp_path, saved_table):
    """Only the workloads asked for are replayed."""
    few = write_trace(tmp_path / "few.parquet", Plan(prompts=2, tokens=8, about=TINY))
    found = studied(few, saved_table, workloads=("prose",))
    assert [each.scenario.workload for each in found.comparisons] == ["prose"]
    result = json.loads(found.as_json())["scenarios"][0]["results"][0]
    interval = result["tokens_per_s"]
    assert interval["low"] is interval["high"] is None
    assert interval["value"] > 0.0


def test_drafting_is_charged_at_the_speed_of_the_tables_machine(saved_table, tmp_path):
    """A recorder twice as slow at its reference work drafts twice as fast there."""
    table = CostTable.load(saved_table)
    provenance = replace(table.provenance, reference_us=100.0)
    path = tmp_path / "clocked.json"
    replace(table, provenance=provenance).save(path)
    about = replace(TINY, engine=table.key.engine)

    def draft_us(about):
        plan = Plan(prompts=2, tokens=4, workloads=("code",), about=about)
        found = studied(write_trace(tmp_path / "trace.parquet", plan), path)
        return found.comparisons[0].of(FULL_TREE).draft_us.value

    slow = replace(about, reference_us=200.0)
    assert draft_us(slow) == pytest.approx(0.5 * draft_us(about))


@pytest.mark.parametrize("batch", [1, 5])
def test_a_batch_outside_of_the_table_is_refused(saved_table, batch):
    table = CostTable.load(saved_table)
    domain = {**table.fit.domain, "batch": (2, 4)}
    narrow = replace(table, fit=replace(table.fit, domain=domain))
    trace = replayed_trace(None, "easy", narrow)
    with pytest.raises(ConfigError, match=f"batch {batch} is outside .*, 2..4; choose"):
        replay_study(trace, narrow, [batch], 1, print)


def test_a_table_of_another_model_is_refused(saved_table, tmp_path):
    other = write_trace(tmp_path / "other.parquet", Plan(prompts=1, tokens=4))
    with pytest.raises(DataError, match="give the table of the model"):
        studied(other, saved_table)
