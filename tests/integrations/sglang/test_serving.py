"""A server that is followed cuts; on any doubt it decodes as without the plug-in."""

import gc
import logging
import sys
import weakref
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evict_profile.errors import DataError
from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang import compat, serving
from evict_profile.integrations.sglang.decision import Chooser, Metrics
from evict_profile.integrations.sglang.modes import FixedWidth, VerifyTimer
from evict_profile.integrations.sglang.observer import Observer
from evict_profile.integrations.sglang.router import BudgetHook
from evict_profile.records import replace
from evict_profile.runtime import DecodingStep
from evict_profile.runtime.staleness import WINDOW
from tests.integrations.sglang.server import (
    EXPERTS,
    WIDTH,
    Batch,
    IntelAMXAttnBackend,
    ModelRunner,
    decode,
    start,
)

FIRST_WIDTHS = {1, 2, 3, 4, 6, 8, WIDTH}


@pytest.fixture
def outcomes(monkeypatch):
    heard = []
    monkeypatch.setattr(Metrics, "add", lambda self, outcome, _: heard.append(outcome))
    return heard


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
    assert worker.verified == [(WIDTH, WIDTH)] * 3
    return not worker.evict_profile.active


def test_outcomes_are_of_the_step_before_each_with_its_width(
    serves, plain_table, outcomes
):
    worker = serves(plain_table)
    _, committed = decode(worker, Batch(2), 12)
    widths = [width for width, _ in worker.verified]
    assert set(widths) <= FIRST_WIDTHS
    assert [outcome.committed for outcome in outcomes] == [*map(sum, committed)][:-1]
    assert [outcome.choice.width for outcome in outcomes] == widths[:-1]
    assert {outcome.choice.requests for outcome in outcomes} == {2}
    assert all(outcome.step_us for outcome in outcomes)


def test_widths_that_do_not_fit_are_left_out(serves, plain_table, monkeypatch, log):
    asked = []
    monkeypatch.setattr(
        serving, "fitting", lambda runner, *given: asked.append(given) or [1, 3]
    )
    worker = serves(plain_table)
    assert asked == [({1, 2, 3, 4, 6, 8}, 2)]  # the table's largest batch is 2
    assert "widths 2, 4, 6, 8 do not fit into the memory and are left" in log.text
    decode(worker, Batch(2), 12)
    assert {width for width, _ in worker.verified} <= {1, 3, WIDTH}


def test_a_fixed_width_that_does_not_fit_is_refused(
    serves, full_table, monkeypatch, log
):
    """It needs the graphs of all batches, since it cuts them all."""
    asked = []
    monkeypatch.setattr(
        serving, "fitting", lambda runner, *given: asked.append(given) or []
    )
    worker = serves(full_table, width=4)
    assert asked == [({4}, None)]
    assert decodes_as_without(worker, log, "widths 4 do not fit into the memory")


def test_a_prefill_or_a_batch_that_is_not_covered_makes_a_steps_time_unknown(
    serves, plain_table, outcomes, monkeypatch
):
    worker, contexts = serves(plain_table), []
    choose = Chooser.choose
    monkeypatch.setattr(
        Chooser,
        "choose",
        lambda self, *trees: contexts.append(trees[-1]) or choose(self, *trees),
    )
    for size, mode in (
        (2, "decode"),
        (2, "decode"),
        (2, "extend"),
        (2, "decode"),
        (2, "decode"),
        (3, "decode"),
        (2, "decode"),
        (2, "decode"),
    ):
        batch = Batch(size, mode)
        batch.seq_lens_cpu = None
        worker.forward_batch_generation(batch)
    assert [bool(outcome.step_us) for outcome in outcomes] == [True, False, True, True]
    assert contexts == [85.0] * 6


def test_the_asked_sizes_are_built_and_its_memory_logged(serves, plain_table, log):
    serves(plain_table, capture_sizes=(2, 5, WIDTH))
    (said,) = log.messages
    assert said.startswith("evict-profile: on, table t.json; widths, and the memory ")
    assert "2: 0 MiB, 5: 0 MiB, 9: 0 MiB; built in" in said


@pytest.mark.parametrize(("budget", "built"), [(None, [2]), (EXPERTS, [2, WIDTH])])
def test_whole_trees_run_graphs_within_the_budget(
    serves, plain_table, monkeypatch, budget, built
):
    """The server's own were captured without it."""
    monkeypatch.setattr(BudgetHook, "attach", lambda self, runner: None)
    worker = serves(plain_table, capture_sizes=(2, WIDTH), expert_budget=budget)
    assert worker.runner.built == built


def test_pausing_drafts_nothing(serves, full_table, monkeypatch, outcomes):
    worker = serves(full_table)
    for extends in (True, False, True):
        monkeypatch.setattr(DecodingStep, "deeper", lambda _, extends=extends: extends)
        worker.forward_batch_generation(Batch(1))
    assert worker.log.count("draft") == 2
    assert worker.verified[1] == (1, 1)
    assert worker.evict_profile.active
    assert outcomes[1].choice.width == outcomes[1].committed == 1


def two_stages(patch, context):
    context.options["pp_size"] = 2


def dense_model(patch, context):
    init = ModelRunner.__init__
    patch.setattr(ModelRunner, "__init__", lambda self: init(self, layers=0))


def no_memory(patch, context):
    error = RuntimeError("out of memory")
    patch.setattr(ModelRunner, "_get_attention_backend", raises(error))


def wrong_table(patch, context):
    error = DataError("t.json: is of another engine")
    patch.setattr(compat, "load_matching_table", raises(error))


def without_groups(patch, context):
    patch.delattr(sys.modules["sglang.srt.distributed.parallel_state"], "get_tp_group")


def file_in_the_way(patch, context):
    Path("seen").write_text("")


ON = Settings("on", table=Path("t.json"))
OBSERVE = Settings("observe", traces=Path("seen"))


@pytest.mark.parametrize(
    ("settings", "make", "says"),
    [
        *((asked, two_stages, "pp_size is 2") for asked in (ON, OBSERVE)),
        *((asked, dense_model, "no routed experts") for asked in (ON, OBSERVE)),
        (ON, wrong_table, "is of another engine"),
        (ON, no_memory, "out of memory"),
        (
            replace(ON, capture_sizes=(64,)),
            lambda *given: None,
            "EVICT_PROFILE_CAPTURE_SIZES has width 64",
        ),
        (OBSERVE, file_in_the_way, "seen"),
        (ON, without_groups, "cannot import name 'get_tp_group'"),
    ],
)
def test_doubts_at_the_start_close_it(
    sglang, plain_table, monkeypatch, log, tmp_path, settings, make, says
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: plain_table)
    make(monkeypatch, sglang)
    assert decodes_as_without(start(settings), log, says)
    assert not Path("seen").is_dir()


@pytest.mark.parametrize(
    ("target", "stage"),
    [(Chooser, "choose"), (Chooser, "learn"), (Chooser, "pause")],
)
def test_a_decision_that_fails_closes_it(
    serves, plain_table, full_table, monkeypatch, log, target, stage
):
    """Mid-way, with what failed in the log; the step itself verifies all."""
    worker = serves(full_table if stage == "pause" else plain_table)
    worker.forward_batch_generation(Batch(2))
    monkeypatch.setattr(target, stage, raises(ValueError("a wrong turn")))
    worker.log.clear()
    worker.forward_batch_generation(Batch(2))
    assert worker.verified == [(WIDTH, WIDTH)]
    assert decodes_as_without(worker, log, "a wrong turn")
    assert "Traceback" in log.text


def fails_from_now_on(worker, monkeypatch, part, error):
    state = worker.evict_profile
    owner, name = {
        "keep": (state.scores, "_store"),
        "_drafted": (state, part),
        "swapped": (serving, part),
        "cache_slots": (compat, part),
        "set_token_weights": (state.budget, part),
    }[part]
    monkeypatch.setattr(owner, name, raises(error))


@pytest.mark.parametrize(
    ("part", "pauses"),
    [
        ("keep", False),
        ("_drafted", False),
        *product(("swapped", "cache_slots", "set_token_weights"), (False, True)),
    ],
)
def test_a_hook_that_fails_closes_it(
    serves, full_table, monkeypatch, log, part, pauses
):
    """The step itself verifies all, and no step after it fails or is logged again."""
    if part == "set_token_weights":
        monkeypatch.setattr(BudgetHook, "attach", lambda self, runner: None)
    monkeypatch.setattr(DecodingStep, "deeper", lambda step: not pauses)
    budget = EXPERTS if part == "set_token_weights" else None
    worker = serves(full_table, expert_budget=budget)
    worker.route = lambda original, *args, **kwargs: original(*args, **kwargs)
    worker.forward_batch_generation(Batch(2))
    assert worker.verified[-1][0] < WIDTH
    fails_from_now_on(worker, monkeypatch, part, RuntimeError("out of memory"))
    worker.log.clear()
    worker.forward_batch_generation(Batch(2))
    assert worker.verified == [(WIDTH, WIDTH)]
    assert decodes_as_without(worker, log, "out of memory")


def test_an_error_of_sglang_is_its_own(serves, plain_table, log):
    """It ends the server as without the plug-in, and nothing runs a second time."""
    worker = serves(plain_table)
    worker.fails_in = "verify"
    with pytest.raises(RuntimeError, match="the kernel failed"):
        worker.forward_batch_generation(Batch(2))
    assert len(worker.verified) == 1
    assert "evict-profile: off" not in log.text


def test_a_capture_that_fails_gives_back_what_was_built(
    serves, plain_table, monkeypatch, log
):
    """SGLang's runners of graphs refer to themselves."""
    built = []

    def backend(self, init_new_workspace):
        if len(built) == 2:
            raise RuntimeError("out of memory")
        made = IntelAMXAttnBackend()
        made.itself = made
        built.append(weakref.ref(made))
        return made

    monkeypatch.setattr(ModelRunner, "_get_attention_backend", backend)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: built.append(None))
    gc.disable()
    try:
        worker = serves(plain_table)
    finally:
        gc.enable()
    first, second, emptied = built
    assert first() is second() is emptied is None
    assert decodes_as_without(worker, log, "out of memory")


def asked_to_switch(worker, **server_args):
    """What is left of the request for SGLang, which refuses keys that it lacks."""
    request = SimpleNamespace(server_args=server_args)
    return worker.evict_profile.switch(lambda _, left: left.server_args, None, request)


def test_it_is_switched_off_and_on_between_steps(serves, full_table, log, outcomes):
    """Whole trees run the server's own graphs; the time in between is of no step."""
    worker = serves(full_table, width=None)
    decode(worker, Batch(2), 2)
    worker.log.clear()
    for value in (0, 0, 1, 1):
        assert asked_to_switch(worker, evict_profile=value, other=3) == {"other": 3}
        decode(worker, Batch(2), 2)
    widths = [width for width, _ in worker.verified]
    assert widths[:4] == [WIDTH] * 4
    assert max(widths[4:]) < WIDTH
    assert log.text.count("switched off") == log.text.count("switched on") == 2
    assert [bool(outcome.step_us) for outcome in outcomes[:3]] == [True, False, True]


def test_other_settings_are_sglangs_own(serves, plain_table, log):
    worker = serves(plain_table)
    assert asked_to_switch(worker, other=3) == {"other": 3}
    assert "switched" not in log.text


def test_what_has_failed_cannot_be_switched_on(serves, plain_table, monkeypatch, log):
    worker = serves(plain_table)
    asked_to_switch(worker, evict_profile=0)
    monkeypatch.setattr(worker.evict_profile.scores, "_store", raises(ValueError("no")))
    decode(worker, Batch(2), 2)
    assert asked_to_switch(worker, evict_profile=1) == {"evict_profile": 1}
    assert decodes_as_without(worker, log, "no")


def test_a_fixed_cut_that_fails_closes_it(serves, full_table, monkeypatch, log):
    worker = serves(full_table, width=4)
    monkeypatch.setattr(FixedWidth, "choose", raises(RuntimeError("out of memory")))
    worker.forward_batch_generation(Batch(2))
    assert worker.verified == [(WIDTH, WIDTH)]
    assert decodes_as_without(worker, log, "out of memory")


def test_a_batch_that_is_not_covered_is_verified_whole(serves, plain_table, log):
    worker = serves(plain_table)
    for requests in (3, 3, 2):
        worker.forward_batch_generation(Batch(requests))
    assert [width for width, _ in worker.verified][:2] == [WIDTH, WIDTH]
    assert worker.verified[2][0] < WIDTH
    assert log.text.count("batches of 3 are not in the table") == 1
    assert worker.evict_profile.active
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
    serves, full_table, monkeypatch, log, slower, drifts
):
    """Drift is said once; trees go on being cut, since no cut changes what is said."""
    metrics, now = Metrics(), [0.0]
    monkeypatch.setattr(serving, "Metrics", lambda *asked: metrics)
    monkeypatch.setattr(VerifyTimer, "_mark", lambda self: now[0])
    worker = serves(full_table)

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
    assert metrics.verify_ratio == pytest.approx(slower)
    assert worker.evict_profile.active


def test_observing_verifies_whole_trees(sglang, tmp_path, log):
    worker = start(Settings("observe", traces=tmp_path))
    for size in (1, 2, 3):
        worker.forward_batch_generation(Batch(size))
    assert worker.verified == [(WIDTH, WIDTH)] * 3
    assert log.messages == [f"evict-profile: observing into {tmp_path}"]


@pytest.mark.parametrize("enabled", [False, True])
def test_prometheus_is_used_where_the_server_shows_metrics(
    serves, plain_table, sglang, monkeypatch, enabled
):
    shown = []
    monkeypatch.setattr(serving, "Metrics", lambda *asked: shown.append(asked))
    sglang.options["enable_metrics"] = enabled
    serves(plain_table)
    assert shown == [(enabled, 1)]
