"""Widths are the runtime's, fed with what SGLang says, and learnt from how it went."""

from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import DataError
from evict_profile.integrations.sglang import decision
from evict_profile.integrations.sglang.decision import (
    REGRET_MEMORY,
    REGRET_STEPS,
    Chooser,
)
from evict_profile.integrations.sglang.tree import depths
from evict_profile.records import replace
from evict_profile.runtime import DecodingStep, Truncator
from evict_profile.runtime.depth import DepthChoice
from tests.integrations.sglang.drafter import drafting, on_host

CAPTURE_SIZES = (1, 2, 4, 8, 16)


@pytest.fixture
def clock(monkeypatch):
    """The host's clock: one microsecond more each time that it is read."""
    ticks = count(1000)
    monkeypatch.setattr(decision, "_now_us", lambda: float(next(ticks)))
    return ticks


def trees(batch=2, seed=1, width=16):
    return drafting(seed, batch, 3, 3).drafted(width)


def depth_of(drafted):
    return depths(drafted.index, drafted.topk)


def truncator(table):
    return Truncator(
        table,
        drafts="topk",
        acceptance="target-only",
        allocation="uniform",
        capture_sizes=CAPTURE_SIZES,
    )


@pytest.fixture
def chooser(plain_table):
    return Chooser(plain_table, CAPTURE_SIZES)


@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(64, 256))
def test_choices_are_the_runtimes(plain_table, seed, batch, context):
    drafted = trees(batch, seed)
    made = Chooser(plain_table, CAPTURE_SIZES).choose(*on_host(drafted), context)
    plan = truncator(plain_table).plan(drafted.path_prob, context)
    assert made.width == min(
        width for width in CAPTURE_SIZES if width >= plan.widths[0]
    )
    assert made.plan.widths.tolist() == [made.width] * batch
    assert made.plan.keep[plan.keep].all()
    assert made.plan.keep.sum(dim=1).tolist() == [made.width - 1] * batch
    assert made.plan.tokens == made.width * batch
    assert made.requests == batch


def test_the_most_probable_of_the_rest_fill_a_captured_width(chooser):
    path_prob = np.zeros((2, 15), np.float32)
    path_prob[:, [0, 5]], path_prob[:, 9] = 1.0, 1e-20
    flat = np.tile(np.arange(15), (2, 1))
    made = chooser.choose(path_prob, flat, flat[:, :0], 15, 100)
    assert (made.width, made.plan.tokens, made.plan.expected_accepted) == (4, 8, 4.0)
    assert made.plan.widths.tolist() == [4, 4]
    assert made.plan.keep.nonzero()[:, 1].tolist() == 2 * [0, 5, 9]


@given(st.integers(0, 10**6))
def test_depths_and_parents_are_given_where_the_table_reads_them(full_table, seed):
    drafted = trees(1, seed)
    made = Chooser(full_table, CAPTURE_SIZES).choose(*on_host(drafted), 100)
    plan = truncator(full_table).plan(
        drafted.path_prob, 100, depth=depth_of(drafted), parent=drafted.parent
    )
    assert torch.equal(made.plan.keep, plan.keep)
    assert made.plan.step_cost_us == plan.step_cost_us
    assert made.plan.whole_step and not made.plan.caveats


@pytest.mark.parametrize(("served", "covered"), [(1, 64), (100, 100), (10**6, 256)])
def test_contexts_outside_the_table_take_the_nearest(chooser, served, covered):
    made = chooser.choose(*on_host(trees()), served).plan
    assert not made.caveats
    assert (
        made.step_cost_us
        == chooser.choose(*on_host(trees()), covered).plan.step_cost_us
    )


def test_batches_outside_the_table_have_no_cost(chooser):
    assert [chooser.costs(requests) for requests in (1, 2, 3)] == [True, True, False]
    with pytest.raises(DataError, match="batch 3 is outside"):
        chooser.choose(*on_host(trees(batch=3)), 100)


def test_a_step_takes_from_decision_to_decision(chooser, clock):
    outcomes, made = [], []
    for accepted in ([2, 1], [1, 1]):
        made.append(chooser.choose(*on_host(trees()), 100))
        outcomes.append(chooser.learn(np.array(accepted)))
    assert [each and each.choice for each in outcomes] == made
    assert [each and each.committed for each in outcomes] == [3, 2]
    assert [each and each.step_us for each in outcomes] == [None, 3.0]
    assert made[0].decision_us == 1.0


def test_an_interrupted_step_has_no_time(chooser, clock):
    outcomes = []
    for step in range(4):
        chooser.choose(*on_host(trees()), 100)
        if step == 2:
            chooser.exclude_prefill()
        outcomes.append(chooser.learn(np.array([1, 1])))
    assert [each and each.step_us for each in outcomes] == [None, 3.0, None, 3.0]
    assert [each and each.committed for each in outcomes] == [2, 2, 2, 2]


def test_a_step_is_learnt_from_once(chooser, clock):
    """A step that was asked whether to pause, and did not, is asked for its width; its
    time goes on from the first question."""
    chooser.choose(*on_host(trees()), 100)
    first = chooser.learn(np.array([1, 1]))
    assert first and chooser.learn(np.array([1, 1])) is None
    chooser.choose(*on_host(trees()), 100)
    outcome = chooser.learn(np.array([1, 1]))
    assert outcome and outcome.step_us == 3.0


def test_nothing_is_learnt_before_the_first_step_and_from_a_skipped_one(chooser):
    assert chooser.learn(np.empty(0, dtype=np.int64)) is None
    chooser.choose(*on_host(trees()), 100)
    chooser.skip()
    assert chooser.learn(np.array([2, 1])) is None


def test_the_regret_of_one_step_in_64_enters_its_mean(chooser, monkeypatch):
    monkeypatch.setattr(DecodingStep, "regret", lambda step: 0.8)
    for _ in range(REGRET_STEPS):
        assert chooser.regret == 0.0
        chooser.choose(*on_host(trees()), 100)
    assert chooser.regret == pytest.approx(0.8 / REGRET_MEMORY)


def test_what_is_learnt_is_what_the_runtime_learns(chooser, plain_table, clock):
    alone = truncator(plain_table)
    for seed in range(30):
        drafted = trees(1, seed)
        plan = alone.plan(drafted.path_prob, 100)
        made = chooser.choose(*on_host(drafted), 100)
        assert (made.plan.acceptance_ratio, made.plan.expected_accepted) == (
            plan.acceptance_ratio,
            plan.expected_accepted,
        )
        committed = 1 + seed % int(plan.tokens)
        outcome = chooser.learn(np.array([committed]))
        alone.observe(plan, committed, outcome and outcome.step_us)
    assert made.plan.acceptance_ratio != 1.0


def test_a_pause_is_the_runtimes(full_table):
    """After steps whose drafts gained nothing, none are drafted; later again. The
    drafter's cache is extended in either step, and that is all that is left of it."""
    table = replace(full_table, drafting=full_table.drafting.extending())
    chooser, alone = Chooser(table, CAPTURE_SIZES), truncator(table)
    paused = []
    for seed in range(200):
        made = chooser.pause(1, 100)
        paused.append(made is not None)
        step, drafted = alone.begin(1, 100), trees(1, seed)
        assert paused[-1] is not step.deeper()
        if made:
            plan = step.plan()
        else:
            chooser.choose(*on_host(drafted), 100)
            depth, parent = depth_of(drafted), drafted.parent
            plan = alone.plan(drafted.path_prob, 100, depth=depth, parent=parent)
        chooser.learn(np.array([1]))
        alone.observe(plan, 1)
    assert any(paused) and not all(paused)


@pytest.mark.parametrize("lacks", ["drafting", "acceptance", "width"])
def test_without_all_that_it_needs_nothing_pauses(full_table, lacks):
    capture_sizes = (2, 4, 8) if lacks == "width" else CAPTURE_SIZES
    table = full_table if lacks == "width" else replace(full_table, **{lacks: None})
    chooser = Chooser(table, capture_sizes)
    for _ in range(50):
        chooser.choose(*on_host(trees(1)), 100)
        chooser.learn(np.array([1]))
        assert chooser.pause(1, 100) is None


def test_a_tree_without_some_parent_is_decided_all_the_same(full_table):
    tree = drafting(0, 1, 2, 3).chosen([[0, 1, 7, 8]])
    sure = replace(tree, path_prob=torch.ones(1, 4))
    assert sure.parent[0].tolist()[2:] == [2, 3]
    plan = Chooser(full_table, CAPTURE_SIZES).choose(*on_host(sure), 100).plan
    assert plan.tokens >= 1 and plan.expected_accepted <= 2.0


def test_a_choice_knows_the_cost_of_its_verification(full_table, monkeypatch):
    """Without drafting and the rest, in steps that draft and in one that does not; and
    none for a context that was not measured."""
    clocks = tuple(replace(c, token_us=70.0) for c in full_table.drafting.batches)
    drafting = replace(full_table.drafting, batches=clocks)
    chooser = Chooser(replace(full_table, drafting=drafting), CAPTURE_SIZES)
    cost_us = full_table.step_cost_us(2, 128)
    made = chooser.choose(*on_host(trees()), 128.0)
    assert made.plan.whole_step
    assert made.verify_us == pytest.approx(cost_us[2 * made.width])
    assert chooser.choose(*on_host(trees()), 1e6).verify_us is None
    monkeypatch.setattr(DecodingStep, "deeper", lambda step: False)
    paused = chooser.pause(2, 128.0)
    assert paused is not None
    assert paused.verify_us == pytest.approx(cost_us[2])


@pytest.mark.parametrize("learns", [True, False])
def test_times_of_verification_correct_the_costs_unless_it_is_off(plain_table, learns):
    """The cost that drift is judged by stays the table's."""
    chooser = Chooser(plain_table, CAPTURE_SIZES, learns)
    drafted = on_host(trees())
    first = chooser.choose(*drafted, 100)
    assert first.verify_us == pytest.approx(first.plan.step_cost_us)
    for _ in range(40):
        chosen = chooser.choose(*drafted, 100)
        chooser.learn(np.ones(2, np.int32), 0.5 * chosen.verify_us)
    last = chooser.choose(*drafted, 100)
    same = first.plan.tokens == last.plan.tokens
    assert not same or last.verify_us == pytest.approx(first.verify_us)
    assert (chooser.learner.steps == 40) == learns
    assert (last.plan.step_cost_us < last.verify_us) == learns


def choosing_depths(table):
    chooser = Chooser(table, CAPTURE_SIZES)
    chooser.depth = DepthChoice((2, 3))
    return chooser


def test_steps_are_those_of_the_runtimes_choice(full_table):
    """From drafts accepted, not tokens committed, and the cost without drafting."""
    chooser, alone = choosing_depths(full_table), DepthChoice((2, 3))
    clock, rng, seen = full_table.drafting.at(2), np.random.default_rng(2), []
    for seed in range(200):
        steps = chooser.steps(2)
        assert steps == alone.choose(clock)
        drafted = drafting(seed, 2, 3, steps).drafted(8)
        plan = chooser.choose(*on_host(drafted), 100).plan
        most = min(steps, int(plan.tokens) // 2 - 1) if seed > 100 else 0
        committed = 1 + rng.integers(0, most + 1, 2)
        assert chooser.learn(committed)
        alone.observe(committed - 1, plan.step_cost_us - clock.beside_us(steps))
        seen.append(steps)
    assert set(seen) == {2, 3}
    assert chooser.depth.switches == alone.switches


def test_a_step_costs_the_levels_that_were_chosen(full_table):
    """A tree of two levels may have nodes of the first alone."""
    drafted = drafting(1, 1, 3, 2).drafted(8)
    chosen = choosing_depths(full_table).choose(*on_host(drafted), 100).plan
    without = Chooser(full_table, CAPTURE_SIZES).choose(*on_host(drafted), 100).plan
    clock = full_table.drafting.at(1)
    third_us = clock.beside_us(3) - clock.beside_us(2)
    assert chosen.step_cost_us == pytest.approx(without.step_cost_us + third_us)


def test_a_paused_step_teaches_nothing_about_depths(full_table, monkeypatch):
    monkeypatch.setattr(DecodingStep, "deeper", lambda step: False)
    chooser = choosing_depths(full_table)
    assert chooser.steps(1) == 3 and chooser.pause(1, 100)
    before = chooser.depth.expected_tokens().tolist()
    assert chooser.learn(np.array([1]))
    assert chooser.depth.expected_tokens().tolist() == before
