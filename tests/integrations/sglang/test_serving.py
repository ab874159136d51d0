"""A server that is followed cuts; on any doubt it decodes as without the plug-in."""

import logging
from pathlib import Path

import pytest

from evict_profile.errors import TableError
from evict_profile.integrations.sglang import compat, serving
from evict_profile.integrations.sglang.budget import BudgetHook
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.integrations.sglang.metrics import Metrics, VerifyTimer
from evict_profile.integrations.sglang.observer import Observer
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.records import replace
from evict_profile.runtime import DecodingStep
from evict_profile.runtime.staleness import WINDOW
from tests.integrations.sglang.server import (
    EXPERTS,
    WIDTH,
    Batch,
    ModelRunner,
    start,
)

ON = Settings("on", table=Path("t.json"))


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "evict_profile.sglang")
    return caplog


@pytest.fixture
def outcomes(monkeypatch):
    heard = []
    monkeypatch.setattr(Metrics, "add", lambda self, outcome: heard.append(outcome))
    return heard


def decode(worker, steps, size=2):
    batch, committed = Batch(size), []
    for _ in range(steps):
        result = worker.forward_batch_generation(batch)
        committed.append(int(result.accept_lens.sum()))
        batch.after(result)
    return committed


def verified(worker):
    return [(each[1], each[3]) for each in worker.log if each[0] == "verify"]


def raises(error):

    def fail(*args, **kwargs):
        raise error

    return fail


def decodes_as_without(worker, log, says):
    """Whether one warning was given, and whole trees are verified from now on."""
    worker.log.clear()
    for size in (1, 2, 3):
        worker.forward_batch_generation(Batch(size))
        worker.forward_batch_generation(Batch(size, "extend"))
    (said,) = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    assert said.startswith("evict-profile: off, whole trees are verified: ")
    assert says in said
    assert verified(worker) == [(WIDTH, WIDTH)] * 3
    return not worker.evict_profile.follows


@pytest.mark.usefixtures("covered", "sglang")
def test_outcomes_are_of_the_step_before_each_with_its_width(outcomes):
    worker = start(ON)
    committed = decode(worker, 12)
    widths = [width for width, _ in verified(worker)]
    assert set(widths) <= {1, 2, 3, 4, 6, 8, WIDTH}
    assert [outcome.committed for outcome in outcomes] == committed[:-1]
    assert [outcome.choice.width for outcome in outcomes] == widths[:-1]
    assert {outcome.choice.requests for outcome in outcomes} == {2}
    assert all(outcome.step_us for outcome in outcomes)


@pytest.mark.usefixtures("covered", "sglang")
def test_a_prefill_between_makes_a_steps_time_unknown(outcomes, monkeypatch):
    worker, contexts = start(ON), []
    choose = Chooser.choose
    monkeypatch.setattr(
        Chooser,
        "choose",
        lambda self, *trees: contexts.append(trees[-1]) or choose(self, *trees),
    )
    for mode in ("decode", "decode", "extend", "decode", "decode"):
        batch = Batch(2, mode)
        batch.seq_lens_cpu = None
        worker.forward_batch_generation(batch)
    assert [bool(outcome.step_us) for outcome in outcomes] == [True, False, True]
    assert contexts == [85.0] * 4


@pytest.mark.usefixtures("covered", "sglang")
def test_the_asked_sizes_are_built_and_its_memory_logged(log):
    worker = start(replace(ON, capture_sizes=(2, 5, WIDTH)))
    states = worker.evict_profile._states
    assert sorted(states) == [2, 5, WIDTH]
    assert states[WIDTH].attn_backend is worker.runner.attn_backend
    (said,) = log.messages
    assert said.startswith("evict-profile: on, table t.json; widths, and the memory ")
    assert "2: 0 MiB, 5: 0 MiB, 9: 0 MiB; built in" in said


@pytest.mark.usefixtures("covered", "sglang")
@pytest.mark.parametrize("budget", [None, EXPERTS])
def test_whole_trees_run_graphs_within_the_budget(monkeypatch, budget):
    """The server's own were captured without it."""
    monkeypatch.setattr(BudgetHook, "follow", lambda self, runner: None)
    worker = start(replace(ON, capture_sizes=(2, WIDTH), expert_budget=budget))
    whole = worker.evict_profile._states[WIDTH]
    assert (whole.attn_backend is worker.runner.attn_backend) == (budget is None)


def test_pausing_drafts_nothing(full_table, sglang, monkeypatch, outcomes):
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: full_table)
    worker = start(ON)
    for extends in (True, False, True):
        monkeypatch.setattr(DecodingStep, "deeper", lambda _, extends=extends: extends)
        worker.forward_batch_generation(Batch(1))
    assert worker.log.count("draft") == 2
    assert verified(worker)[1] == (1, 1)
    assert worker.evict_profile.follows
    assert outcomes[1].choice.width == outcomes[1].committed == 1


def two_ranks(patch, context):
    context.options["tp_size"] = 2
    return {}


def dense_model(patch, context):
    return {"runner": ModelRunner(layers=0)}


def wrong_table(patch, context):
    error = TableError("t.json: is of another engine")
    patch.setattr(compat, "load_matching_table", raises(error))
    return {}


def no_memory(patch, context):
    error = RuntimeError("out of memory")
    patch.setattr(ModelRunner, "_get_attention_backend", raises(error))
    return {}


def unmeasured_width(patch, context):
    return {"settings": replace(ON, capture_sizes=(64,))}


def file_in_the_way(patch, context):
    Path("seen").write_text("")
    return {}


DOUBTS_OF_BOTH = [
    (two_ranks, "tp_size is 2"),
    (dense_model, "no routed experts"),
]


@pytest.mark.usefixtures("covered")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        *DOUBTS_OF_BOTH,
        (wrong_table, "is of another engine"),
        (no_memory, "out of memory"),
        (unmeasured_width, "EVICT_PROFILE_CAPTURE_SIZES has width 64"),
    ],
)
def test_doubts_at_the_start_close_it(sglang, monkeypatch, log, make, says):
    asked = {"settings": ON, **make(monkeypatch, sglang)}
    assert decodes_as_without(start(**asked), log, says)


@pytest.mark.parametrize(("make", "says"), [*DOUBTS_OF_BOTH, (file_in_the_way, "seen")])
def test_doubts_at_the_start_close_an_observer(
    sglang, monkeypatch, log, tmp_path, make, says
):
    monkeypatch.chdir(tmp_path)
    settings = Settings("observe", traces=Path("seen"))
    worker = start(settings, **make(monkeypatch, sglang))
    assert decodes_as_without(worker, log, says)
    assert not Path("seen").is_dir()


@pytest.mark.usefixtures("covered", "sglang")
@pytest.mark.parametrize("stage", ["choose", "learn", "pause"])
def test_a_decision_that_fails_closes_it(monkeypatch, log, stage):
    """Mid-way, with what failed in the log; the step itself verifies all."""
    worker = start(ON)
    worker.forward_batch_generation(Batch(2))
    worker.evict_profile._mode._chooser.can_pause = stage == "pause"
    monkeypatch.setattr(Chooser, stage, raises(ValueError("a wrong turn")))
    worker.log.clear()
    worker.forward_batch_generation(Batch(2))
    assert verified(worker) == [(WIDTH, WIDTH)]
    assert decodes_as_without(worker, log, "a wrong turn")
    assert "Traceback" in log.text


@pytest.mark.usefixtures("covered", "sglang")
def test_a_cut_that_fails_closes_it(monkeypatch, log):
    worker = start(replace(ON, capture_sizes=(2,)))
    monkeypatch.setattr(Drafted, "kept", raises(ValueError("a wrong turn")))
    worker.forward_batch_generation(Batch(2))
    assert verified(worker) == [(WIDTH, WIDTH)]
    assert decodes_as_without(worker, log, "a wrong turn")


@pytest.mark.usefixtures("covered", "sglang")
def test_a_batch_that_is_not_covered_is_verified_whole(log):
    worker = start(ON)
    for requests in (3, 3, 2):
        worker.forward_batch_generation(Batch(requests))
    assert [width for width, _ in verified(worker)][:2] == [WIDTH, WIDTH]
    assert verified(worker)[2][0] < WIDTH
    assert log.text.count("batches of 3 are not in the table") == 1
    assert worker.evict_profile.follows
    assert "Traceback" not in log.text


@pytest.mark.parametrize("stage", ["begin", "choose", "verified", "end"])
def test_an_observer_that_fails_closes_it(sglang, monkeypatch, log, tmp_path, stage):
    """The step goes on: nobody is to wait for a trace."""
    worker = start(Settings("observe", traces=tmp_path))
    monkeypatch.setattr(Observer, stage, raises(OSError("the disk is full")))
    result = worker.forward_batch_generation(Batch(2))
    assert len(result.accept_lens) == 2
    assert decodes_as_without(worker, log, "the disk is full")


@pytest.mark.parametrize(("slower", "drifts"), [(1.0, False), (3.0, True)])
def test_verifications_are_held_against_their_cost(
    full_table, sglang, monkeypatch, log, slower, drifts
):
    """Drift is said once; trees go on being cut, since no cut changes what is said."""
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: full_table)
    worker, now = start(ON), [0.0]
    monkeypatch.setattr(VerifyTimer, "_mark", lambda self: now[0])

    def tick(stage):
        if stage == "forward":
            width, cost_us = worker.log[-1][1], full_table.step_cost_us(2, 128)
            now[0] += slower * float(cost_us[2 * width])

    worker.runner.tick = tick
    for _ in range(WINDOW + 2):
        batch = Batch(2)
        batch.seq_lens_cpu = batch.seq_lens = batch.seq_lens * 0 + 128
        worker.forward_batch_generation(batch)
    assert log.text.count("no longer describes this machine") == drifts
    assert worker.evict_profile._mode._metrics.verify_ratio == pytest.approx(slower)
    assert worker.evict_profile.follows


def test_observing_verifies_whole_trees(sglang, tmp_path, log):
    worker = start(Settings("observe", traces=tmp_path))
    for size in (1, 2, 3):
        worker.forward_batch_generation(Batch(size))
    assert verified(worker) == [(WIDTH, WIDTH)] * 3
    assert log.messages == [f"evict-profile: observing into {tmp_path}"]


@pytest.mark.usefixtures("covered")
@pytest.mark.parametrize("enabled", [False, True])
def test_prometheus_is_used_where_the_server_shows_metrics(
    sglang, monkeypatch, enabled
):
    shown = []
    monkeypatch.setattr(serving, "Metrics", shown.append)
    sglang.options["enable_metrics"] = enabled
    start(ON)
    assert shown == [enabled]
