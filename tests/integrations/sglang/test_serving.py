"""A server that is followed cuts; on any doubt it decodes as without the plug-in."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evict_profile.errors import TableError
from evict_profile.integrations.sglang import compat, graphs, serving
from evict_profile.integrations.sglang.decision import Chooser, StepOutcome
from evict_profile.integrations.sglang.metrics import Metrics, VerifyTimer
from evict_profile.integrations.sglang.observer import Observer
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.runtime.staleness import WINDOW
from evict_profile.table import CostTable
from tests.integrations.sglang.server import (
    STEPS,
    WIDTH,
    Batch,
    Context,
    Graphs,
    ModelRunner,
    start,
)

ON = Settings("on", table=Path("t.json"))
Patch = pytest.MonkeyPatch


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged."""
    caplog.set_level(logging.INFO, "evict_profile.sglang")
    return caplog


@pytest.fixture
def outcomes(monkeypatch: Patch) -> list[StepOutcome]:
    """What is told to the metrics."""
    heard: list[StepOutcome] = []
    monkeypatch.setattr(Metrics, "add", lambda self, outcome: heard.append(outcome))
    return heard


@pytest.fixture
def widths(monkeypatch: Patch) -> list[int]:
    """Widths to choose, one a step; the chooser's own when there are none left."""
    asked: list[int] = []
    choose = Chooser.choose

    def chosen(self: Chooser, *args: Any) -> Any:
        made = choose(self, *args)
        if asked:
            width = asked.pop(0)
            plan = made.plan._replace(tokens=width * made.requests)
            self._last = made = replace(made, width=width, plan=plan)
        return made

    monkeypatch.setattr(Chooser, "choose", chosen)
    return asked


def observing(folder: Path) -> Settings:
    """What asks for traces."""
    return Settings("observe", traces=folder)


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of."""
    return [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]


def verified(worker: Any) -> list[tuple[int, int]]:
    """Width of each verification, and of the backend that ran it."""
    return [(each[1], each[3]) for each in worker.log if each[0] == "verify"]


def raises(error: Exception) -> Callable[..., Any]:
    """A function that fails."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


def is_as_without(worker: Any, log: pytest.LogCaptureFixture, says: str) -> None:
    """One warning was given, and whole trees are verified from now on."""
    (said,) = warnings(log)
    assert said.startswith("evict-profile: off, whole trees are verified: ")
    assert says in said
    assert not worker.evict_profile.follows
    worker.log.clear()
    for size in (1, 2, 3):
        worker.forward_batch_generation(Batch(size))
        worker.forward_batch_generation(Batch(size, "extend"))
    assert verified(worker) == [(WIDTH, WIDTH)] * 3
    assert len(warnings(log)) == 1


def test_a_followed_server_verifies_what_was_chosen(
    priced: CostTable, sglang: Context, widths: list[int]
) -> None:
    worker = start(ON)
    asked = [4, 1, WIDTH, 2, 8]
    widths += asked
    for _ in asked:
        worker.forward_batch_generation(Batch(2))
    assert verified(worker) == [(width, width) for width in asked]
    assert worker.evict_profile.follows


def test_a_followed_server_chooses_by_its_table(
    priced: CostTable, sglang: Context, outcomes: list[StepOutcome]
) -> None:
    worker, batch = start(ON), Batch(2)
    for _ in range(20):
        batch.after(worker.forward_batch_generation(batch))
    assert {width for width, _ in verified(worker)} <= {1, 2, 3, 4, 6, 8, WIDTH}
    assert {outcome.choice.requests for outcome in outcomes} == {2}
    assert outcomes[0].choice.context == 85.0


def test_outcomes_are_what_was_committed(
    priced: CostTable, sglang: Context, outcomes: list[StepOutcome]
) -> None:
    worker, batch = start(ON), Batch(2)
    committed = []
    for _ in range(12):
        result = worker.forward_batch_generation(batch)
        committed.append(int(result.accept_lens.sum()))
        batch.after(result)
    assert [outcome.committed for outcome in outcomes] == committed[:-1]
    assert [o.choice.width for o in outcomes] == [w for w, _ in verified(worker)][:-1]
    assert all(outcome.step_us for outcome in outcomes)


def test_a_prefill_between_makes_a_steps_time_unknown(
    priced: CostTable, sglang: Context, outcomes: list[StepOutcome]
) -> None:
    worker = start(ON)
    for mode in ("decode", "decode", "extend", "decode", "decode"):
        worker.forward_batch_generation(Batch(2, mode))
    assert [bool(outcome.step_us) for outcome in outcomes] == [True, False, True]


def test_contexts_are_read_from_the_device_where_the_host_has_none(
    priced: CostTable, sglang: Context, outcomes: list[StepOutcome]
) -> None:
    worker = start(ON)
    for _ in range(2):
        batch = Batch(2)
        batch.seq_lens_cpu = None
        worker.forward_batch_generation(batch)
    assert outcomes[0].choice.context == 85.0


def test_the_asked_ladder_is_built(priced: CostTable, sglang: Context) -> None:
    worker = start(Settings("on", table=Path("t.json"), ladder=(2, 5)))
    assert sorted(worker.evict_profile._states) == [2, 5]


def test_the_whole_trees_graphs_are_the_servers_own(
    priced: CostTable, sglang: Context
) -> None:
    worker = start(ON)
    state = worker.evict_profile._states[WIDTH]
    assert state.attn_backend is worker.runner.attn_backend


def test_what_was_built_is_said_once(
    priced: CostTable, sglang: Context, log: pytest.LogCaptureFixture
) -> None:
    start(ON)
    (said,) = log.messages
    assert said.startswith(
        "evict-profile: on, table t.json; widths, and the memory that each took: "
        "1: 0 MiB, 2: 0 MiB, 3: 0 MiB"
    )


def test_pausing_drafts_nothing(
    full_table: CostTable,
    sglang: Context,
    monkeypatch: Patch,
    outcomes: list[StepOutcome],
) -> None:
    monkeypatch.setattr(compat, "load_matching_table", lambda path, worker: full_table)
    worker = start(ON)
    pause = Chooser.pause
    for paused in (False, True, False):
        plan = raises(AssertionError()) if paused else pause
        monkeypatch.setattr(Chooser, "pause", plan if not paused else pauses_now)
        worker.forward_batch_generation(Batch(1))
    assert worker.log.count("draft") == 2
    assert verified(worker)[1] == (1, 1)
    assert worker.evict_profile.follows
    assert outcomes[1].choice.width == outcomes[1].committed == 1


def pauses_now(self: Chooser, requests: int, context: float) -> Any:
    """The choice of a pause, whatever past steps say."""
    self._truncator.deeper = lambda *args: False
    try:
        return ORIGINAL_PAUSE(self, requests, context)
    finally:
        del self._truncator.deeper


ORIGINAL_PAUSE = Chooser.pause


def no_hooks(patch: Patch, context: Context) -> dict[str, Any]:
    """SGLang only logs hooks that it could not apply."""
    return {"hooked": False}


def unknown_server(patch: Patch, context: Context) -> dict[str, Any]:
    """Two ranks."""
    context.options["tp_size"] = 2
    return {}


def dense_model(patch: Patch, context: Context) -> dict[str, Any]:
    """A model without routed experts."""
    return {"runner": ModelRunner(layers=0)}


def wrong_table(patch: Patch, context: Context) -> dict[str, Any]:
    """Another engine's."""
    error = TableError("t.json: prices another engine")
    patch.setattr(compat, "load_matching_table", raises(error))
    return {}


def no_memory(patch: Patch, context: Context) -> dict[str, Any]:
    """Memory ran out over a backend."""
    error = RuntimeError("out of memory")
    patch.setattr(ModelRunner, "_get_attention_backend", raises(error))
    return {}


def no_graph(patch: Patch, context: Context) -> dict[str, Any]:
    """The server has graphs, and no width got any."""
    runner = ModelRunner()
    own = Graphs(runner, runner.attn_backend, STEPS, WIDTH)
    runner.decode_cuda_graph_runner = own
    patch.setattr(graphs, "_capture", lambda *args: None)
    return {"runner": runner}


def unpriced_ladder(patch: Patch, context: Context) -> dict[str, Any]:
    """Widths that the table does not know."""
    return {"settings": Settings("on", table=Path("t.json"), ladder=(64,))}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_hooks, "did not apply the hook on sglang"),
        (unknown_server, "tp_size is 2"),
        (dense_model, "no routed experts"),
        (wrong_table, "prices another engine"),
        (no_memory, "out of memory"),
        (no_graph, "no graph was captured for width 1"),
        (unpriced_ladder, "EVICT_PROFILE_LADDER has width 64"),
    ],
)
def test_doubts_at_the_start_close_it(
    priced: CostTable,
    sglang: Context,
    monkeypatch: Patch,
    log: pytest.LogCaptureFixture,
    make: Callable[[Patch, Context], dict[str, Any]],
    says: str,
) -> None:
    asked = {"settings": ON, **make(monkeypatch, sglang)}
    is_as_without(start(**asked), log, says)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_hooks, "did not apply the hook on sglang"),
        (unknown_server, "tp_size is 2"),
        (dense_model, "no routed experts"),
    ],
)
def test_doubts_at_the_start_close_an_observer(
    sglang: Context,
    monkeypatch: Patch,
    log: pytest.LogCaptureFixture,
    tmp_path: Path,
    make: Callable[[Patch, Context], dict[str, Any]],
    says: str,
) -> None:
    asked = make(monkeypatch, sglang)
    is_as_without(start(observing(tmp_path / "seen"), **asked), log, says)
    assert not (tmp_path / "seen").exists()


def test_a_folder_that_cannot_be_made_closes_an_observer(
    sglang: Context, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A file is in its place."""
    (tmp_path / "seen").write_text("")
    is_as_without(start(observing(tmp_path / "seen")), log, "seen")


@pytest.mark.parametrize("stage", ["choose", "learn", "pause"])
def test_a_decision_that_fails_closes_it(
    priced: CostTable,
    sglang: Context,
    monkeypatch: Patch,
    log: pytest.LogCaptureFixture,
    stage: str,
) -> None:
    worker = start(ON)
    worker.forward_batch_generation(Batch(2))
    worker.evict_profile._chooser.can_pause = stage == "pause"
    monkeypatch.setattr(Chooser, stage, raises(ValueError("a wrong turn")))
    worker.log.clear()
    worker.forward_batch_generation(Batch(2))
    assert verified(worker) == [(WIDTH, WIDTH)]
    is_as_without(worker, log, "a wrong turn")
    assert "Traceback" in log.text


def test_a_batch_that_is_not_priced_is_verified_whole(
    priced: CostTable, sglang: Context, log: pytest.LogCaptureFixture
) -> None:
    worker = start(ON)
    for requests in (3, 3, 2):
        worker.forward_batch_generation(Batch(requests))
    assert [width for width, _ in verified(worker)][:2] == [WIDTH, WIDTH]
    assert verified(worker)[2][0] < WIDTH
    assert log.text.count("batches of 3 are not in the table") == 1
    assert worker.evict_profile.follows
    assert "Traceback" not in log.text


@pytest.mark.parametrize("stage", ["drafted", "verified", "end"])
def test_an_observer_that_fails_closes_it(
    sglang: Context,
    monkeypatch: Patch,
    log: pytest.LogCaptureFixture,
    tmp_path: Path,
    stage: str,
) -> None:
    worker = start(observing(tmp_path))
    monkeypatch.setattr(Observer, stage, raises(OSError("the disk is full")))
    result = worker.forward_batch_generation(Batch(2))
    assert len(result.accept_lens) == 2
    is_as_without(worker, log, "the disk is full")


@pytest.mark.parametrize(("slower", "drifts"), [(1.0, False), (3.0, True)])
def test_verifications_are_held_against_their_price(
    full_table: CostTable,
    sglang: Context,
    monkeypatch: Patch,
    log: pytest.LogCaptureFixture,
    slower: float,
    drifts: bool,
) -> None:
    """A table that no longer describes the machine is said once; trees go on being
    cut, since no cut changes what is said."""
    monkeypatch.setattr(compat, "load_matching_table", lambda path, worker: full_table)
    worker, now = start(ON), [0.0]
    monkeypatch.setattr(VerifyTimer, "_mark", lambda self: now[0])

    def tick(stage: str) -> None:
        if stage == "forward":
            width, cost_us = worker.log[-1][1], full_table.step_cost_us(2, 128)
            now[0] += slower * float(cost_us[2 * width])

    worker.runner.tick = tick
    for _ in range(WINDOW + 2):
        batch = Batch(2)
        batch.seq_lens_cpu = batch.seq_lens = batch.seq_lens * 0 + 128
        worker.forward_batch_generation(batch)
    assert log.text.count("no longer describes this machine") == drifts
    assert worker.evict_profile._metrics.verify_ratio == pytest.approx(slower)
    assert worker.evict_profile.follows


def test_observing_decides_nothing(
    sglang: Context, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    worker = start(observing(tmp_path))
    for size in (1, 2, 3):
        worker.forward_batch_generation(Batch(size))
    assert verified(worker) == [(WIDTH, WIDTH)] * 3
    assert log.messages == [f"evict-profile: observing into {tmp_path}"]


def test_idle_batches_ask_for_nothing(
    priced: CostTable, sglang: Context, monkeypatch: Patch
) -> None:
    worker = start(ON)
    monkeypatch.setattr(Chooser, "choose", raises(AssertionError()))
    assert worker.forward_batch_generation(Batch(0, "idle")) == "idle"
    assert worker.evict_profile.follows


def test_prometheus_is_used_where_the_server_shows_metrics(
    priced: CostTable, sglang: Context, monkeypatch: Patch
) -> None:
    shown = []
    monkeypatch.setattr(serving, "Metrics", lambda on: shown.append(on))
    for enabled in (False, True):
        sglang.options["enable_metrics"] = enabled
        start(ON)
    assert shown == [False, True]
