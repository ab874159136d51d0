"""Whole steps of a server as a cost table: what it says, and what refuses it."""

from contextlib import nullcontext

import numpy as np
import pytest

from evict_profile.calibrate import served_table as module
from evict_profile.calibrate.probed import ProbedSetting, settings
from evict_profile.calibrate.runs import read_settings
from evict_profile.calibrate.served import ServedRun
from evict_profile.calibrate.served_table import served_table
from evict_profile.config import load_model
from evict_profile.errors import ConfigError, DataError, MeasurementError
from evict_profile.integrations.exporters import write_format
from evict_profile.records import replace
from evict_profile.runtime import Truncator
from evict_profile.served.probe.record import Probed, Wave, append, read_probe, resume
from evict_profile.served.probe.server import ServerInfo
from evict_profile.table import CostTable, ServedStep
from tests.command import evict, refused

MODEL = load_model("qwen3-30b-a3b")
PLAIN_US, DRAFTING_US, TOKEN_US = 9_000.0, 3_000.0, 700.0


def step_us(batch, drafts):
    """The planted law: drafting at all costs something, and every token does."""
    return PLAIN_US + DRAFTING_US * (drafts > 0) + TOKEN_US * batch * (drafts + 1)


def about(drafts):
    words = ("http://a", "vllm", "0.25.1", "m")
    return ServerInfo(*words, drafts, drafts, 1, {"tp_size": 2})


def setting(batch, drafts, noise=0.0, waves=4):
    rng, committed = np.random.default_rng(drafts), 1.0 + 0.5 * drafts
    us = step_us(batch, drafts) * np.exp(noise * rng.standard_normal(waves))
    rates = (1e6 * batch * committed / us).tolist()
    shape = (batch, drafts + 1, drafts, 1, committed)
    runs = tuple(ServedRun(*shape, rate, 512.0) for rate in rates)
    return ProbedSetting(about(drafts), batch, runs, ())


def probed(*drafts, batches=(1, 4), **changes):
    return [setting(batch, k, **changes) for k in drafts for batch in batches]


RAW = [replace(each, texts="raw") for each in probed(0)]


def mixed(**changes):
    """Plain runs of one server, and drafting ones of another."""
    other = replace(about(3), **changes)
    return probed(0) + [replace(each, server=other) for each in probed(3)]


@pytest.fixture
def table():
    return served_table(probed(0, 1, 7), "h200", MODEL)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_probed_steps_and_those_between_are_found(table, batch, drafts):
    """Batch 2 was not probed: its clock of drafting is the nearest batch's."""
    cost = table.costs(batch, table.axes.context[0]).step_cost_us[batch * (drafts + 1)]
    found = cost + table.drafting.at(batch).overhead_us(drafts)
    assert found == pytest.approx(step_us(batch, drafts), rel=1e-6)


def test_a_step_between_is_less_certain_than_a_probed_one(table):
    cost = table.costs(1, 512)
    width = np.log(cost.high_us / cost.step_cost_us)
    assert width[[1, 2, 8]] == pytest.approx(0.0, abs=1e-9)
    assert width[4] == pytest.approx(module.INTERPOLATION_SD)
    # The noise of waves is in the interval.
    cost = served_table(probed(0, 3, noise=0.02), "h200", MODEL).costs(4, 512)
    assert 0.01 < cost.high_us[4] / cost.step_cost_us[4] - 1.0 < 0.1


@pytest.mark.parametrize(
    ("own", "error", "says"),
    [
        (probed(0, 3, noise=0.3), MeasurementError, "probe longer"),
        (probed(0, 3, waves=1), MeasurementError, "an unknown error, .* probe longer"),
        (probed(0) + RAW + probed(3), ConfigError, r"plain decoding \(raw, http"),
        (probed(3, 5), ConfigError, "batch 1 needs a plain server"),
        (probed(0), ConfigError, "batch 1 needs a plain server"),
        (probed(0, 3) + probed(3), ConfigError, "each with another K"),
        (mixed(engine="sglang"), ConfigError, "engine: vllm first, sglang then"),
        (mixed(version="0.33.0"), ConfigError, "version: 0.25.1 first, 0.33.0 then"),
        (mixed(model="other"), ConfigError, "model: m first, other then"),
        (mixed(url="http://b"), ConfigError, "host: a first, b then"),
        (mixed(flags={"tp_size": 8}), ConfigError, "tp_size: 2 first, 8 then"),
    ],
)
def test_what_shows_no_steps_is_no_table(own, error, says):
    """Flags that drafts change may differ: SGLang turns overlap off by itself."""
    with pytest.raises(error, match=says):
        served_table(own, "h200", MODEL)
    flags = {"tp_size": 2, "disable_overlap_schedule": True}
    assert served_table(mixed(flags=flags), "h200", MODEL)


def test_a_model_that_the_server_does_not_serve_is_refused():
    """A name that no file of a model has says nothing."""
    names = ("Qwen/Qwen3-30B-A3B-Instruct-2507", "/models/Qwen3-30B-A3B-Q4_K_M.gguf")
    for name in (*names, "mine", "deepseek-ai/DeepSeek-V3"):
        wrong = pytest.raises(ConfigError, match="the server's model is deepseek")
        own = [replace(e, server=replace(e.server, model=name)) for e in probed(0, 3)]
        with wrong if name.startswith("deepseek") else nullcontext():
            served_table(own, "h200", MODEL)


def test_it_is_saved_and_read_with_its_origin(table, tmp_path):
    """What needs costs of tokens refuses it."""
    path = module.export_served(table, probed(0, 1, 7), tmp_path)
    assert path.relative_to(tmp_path).parts[2] == "vllm-served"
    read = CostTable.load(path)
    assert (read.origin, read.key.tp) == ("served", 2)
    assert "whole steps of a server" in " ".join(read.caveats)
    with pytest.raises(ConfigError, match="not costs of a tree's tokens"):
        Truncator(read, drafts="topk", acceptance="target-only")
    with pytest.raises(DataError, match="give --accept and --for one of"):
        write_format(read, "sglang-sps", tmp_path / "out.json", 3)


def wave(number, batch, rate, others=0, accepted=2.5, drafted=None):
    return Wave(number, batch, rate, accepted, 512.0, others, 0.0, 1.0, drafted)


def test_disturbed_waves_are_left_out(tmp_path):
    path = tmp_path / "runs.jsonl"
    resume(path, Probed(about(3), "chat"))
    for number in range(1, 6):
        slow = 0.5 if number == 2 else 1.0
        append(path, wave(number, 1, 100.0 * slow))
        append(path, wave(number, 4, 300.0 * slow, others=int(number == 4)))
    one, four = settings(path)
    assert (len(one.left_out), len(four.left_out)) == (1, 2)
    assert one.step_us.value == pytest.approx(2.5e4)


@pytest.mark.parametrize("bad", [1, 3])
def test_waves_of_another_k_reach_no_table(tmp_path, bad):
    """Few are left out, and most of them are a setting that no table takes."""
    path = tmp_path / "runs.jsonl"
    resume(path, Probed(about(3), "chat"))
    for number in range(1, 6):
        append(path, wave(number, 1, 100.0, drafted=1.4 if number <= bad else 3.0))
    [found] = settings(path)
    assert len(found.runs) == (5 if bad == 3 else 4)
    if bad == 3:
        with pytest.raises(ConfigError, match=r"\(K = 1.40\), and a table needs"):
            served_table([found], "h200", MODEL)


def test_a_schedule_by_batch_gives_the_steps_of_each_k(tmp_path):
    """A server of K = 3 that drafts 1 at batch 4, beside a plain one."""
    path = tmp_path / "runs.jsonl"
    for drafts in (0, 3):
        resume(path, Probed(about(drafts), "chat"))
        for batch in (1, 4):
            k = min(drafts, 1) if batch == 4 else drafts
            rate = 1e6 * batch * 2.5 / step_us(batch, k)
            for number in range(1, 6):
                append(path, wave(number, batch, rate, drafted=float(k)))
    table = served_table(settings(path), "h200", MODEL)
    assert [len(each.step_cost_us) - 1 for each in table.staircases] == [4, 8]
    assert table.staircases[1].step_cost_us[8] == pytest.approx(step_us(4, 1))


def test_servers_that_take_turns_are_one_setting_each(tmp_path):
    path = tmp_path / "runs.jsonl"
    for turn in (1, 2):
        for drafts in (0, 3):
            assert len(resume(path, Probed(about(drafts), "chat"))) == turn - 1
            append(path, wave(turn, 1, 100.0))
    assert [len(waves) for _, waves in read_probe(path)] == [2, 2]
    # Another server is refused before its waves are in the file.
    with pytest.raises(ConfigError, match=r"0\.33\.0 then"):
        resume(path, Probed(replace(about(3), version="0.33.0"), "chat"))
    assert len(read_probe(path)) == 2


def test_the_command_makes_a_table_that_advises(tmp_path):
    path = tmp_path / "runs.jsonl"
    for drafts in (0, 3):
        resume(path, Probed(about(drafts), "chat"))
        for number in range(4):
            rate = 1e6 * (1 + drafts / 2) / step_us(1, drafts)
            append(path, wave(number, 1, rate, accepted=1 + drafts / 2))
    words = ("--served", path, "--model", "qwen3-30b-a3b", "--gpu", "h200")
    done = evict("calibrate", *words, "--tables", "tables", folder=tmp_path)
    assert done.exit_code == 0, done.output
    [table] = tmp_path.rglob("1.0.0.json")
    asked = ("advise", table, "--accept", "1.6,2.1,2.5", "--batch", "1")
    done = evict(*asked, folder=tmp_path)
    assert done.exit_code == 0, done.output
    speed = 2.5 * step_us(1, 0) / step_us(1, 3)
    assert f"{speed:.2f}" in done.stdout
    assert evict("show", table, folder=tmp_path).exit_code == 0
    *_, row, _ = evict("show", "tables", folder=tmp_path).stdout.splitlines()
    assert " served  " in row and " - " in row and "composed" not in row
    says = refused("report", table, "--out", "page.html", folder=tmp_path)
    assert "evict-profile show" in says


# Steps of vllm-mlx on an M5 Max, as issue 699 of that project has them.
PRINTED = "batch,K,step ms\n1,0,8.47\n1,1,13.49\n1,2,15.64\n1,4,20.67\n1,7,28.13\n"


def test_published_steps_of_any_model_make_a_table_that_advises(tmp_path):
    """A name that no file has is a label, and a step needs no accepted length."""
    (tmp_path / "runs.csv").write_text(PRINTED)
    words = ("--served", "runs.csv", "--model", "Nemotron-3.5", "--gpu", "M5 Max")
    done = evict("calibrate", *words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "not stated" in done.stdout and "next:" not in done.stdout
    [path] = tmp_path.rglob("1.0.0.json")
    table = CostTable.load(path)
    served, [context] = ServedStep.of(table), table.axes.context
    for drafts, step_ms in ((2, 15.64), (4, 20.67)):
        ratio = served.ratio(1, drafts + 1, drafts, context).value
        assert ratio == pytest.approx(step_ms / 8.47)
    assert any("is a label" in each for each in table.caveats)
    assert evict("advise", path, "--accept", "0.7", folder=tmp_path).exit_code == 0


def test_published_throughputs_name_the_command_that_advises(tmp_path):
    (tmp_path / "runs.csv").write_text(
        "batch,K,tok/s,accepted\n4,0,400,\n4,3,700,2.8\n"
    )
    words = ("--served", "runs.csv", "--model", "any", "--gpu", "any")
    done = evict("calibrate", *words, folder=tmp_path)
    command = done.stdout.partition("next: evict-profile ")[2].split()
    assert command[-1] == "3:2.80"
    done = evict(*command, folder=tmp_path)
    assert "1.75" in done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch,K,step_ms,model\n1,0,5,a\n1,3,9,b\n", "model: a first, b then"),
        ("batch,K,step_ms,gpu\n1,0,5,a\n1,3,9,b\n", "gpu: a first, b then"),
        ("batch,K,step_ms,tp\n1,0,5,4\n1,3,9,8\n", "tp_size: 4 first, 8 then"),
        ("batch,K,step_ms\n1,0,5\n2,3,9\n", r"batch 1 needs a plain server \(K = 0\)"),
    ],
)
def test_published_numbers_of_several_deployments_are_refused(tmp_path, text, says):
    (tmp_path / "runs.csv").write_text(text)
    found = read_settings({tmp_path / "runs.csv": None})
    with pytest.raises(ConfigError, match=says):
        served_table(found, "h200", MODEL)
