"""Plans follow the table, the rule and the past; what is biased is refused."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evict_profile.drafting import DraftClock, Drafting, TimedRound
from evict_profile.errors import ConfigError, DataError
from evict_profile.fit.rounds import by_rounds
from evict_profile.records import replace
from evict_profile.runtime import Calibration, CostTable, Truncator, select_widths
from evict_profile.runtime.decision import History

EAGLE = {"drafts": "topk", "acceptance": "target-only"}
SURE = torch.ones(1, 6)
TREE = torch.tensor([[0.9, 0.8, 0.5, 0.2, 0.1, 0.02]])


@pytest.fixture
def table(saved_table):
    """A table of a known cost: batches 1 and 2, contexts 64 to 256, 16 wide."""
    return CostTable.load(saved_table)


@pytest.fixture
def calibrated(workload_table):
    return CostTable.load(workload_table)


@pytest.mark.parametrize("allocation", ["batch", "uniform"])
def test_ratio_is_select_widths_on_the_tables_costs(table, allocation):
    trees = torch.cat([TREE, TREE**2])
    truncator = Truncator(table, objective="ratio", allocation=allocation, **EAGLE)
    plan = truncator.plan(trees, context=64)
    first = Truncator(table, allocation=allocation, **EAGLE).plan(trees, context=64)
    assert torch.equal(first.keep, plan.keep), "rate begins as the paper's rule"
    cost_us = table.step_cost_us(2, 64)
    expected = select_widths(trees, cost_us, "ratio", allocation=allocation)
    assert torch.equal(plan.widths, expected)
    assert torch.equal(plan.keep.sum(dim=1) + 1, plan.widths)
    assert plan.tokens == int(plan.widths.sum())
    assert plan.step_cost_us == cost_us[plan.tokens]
    assert plan.expected_tokens == pytest.approx(2 + float(trees[plan.keep].sum()))


def test_a_step_is_decided_with_those_before(table):
    truncator = Truncator(table, **EAGLE)
    first = truncator.plan(TREE, context=64)
    truncator.observe(first, committed_tokens=3)
    past = History(True)
    past.add(1, 2, first.expected_accepted, first.step_cost_us, None)
    terms, cost_us = past.terms(1), table.step_cost_us(1, 64)
    benefit = 1.0 + terms.acceptance_ratio * np.concatenate(
        [[0.0], TREE[0].double().cumsum(0)]
    )
    together = (terms.tokens + benefit) / (terms.us + cost_us[1:8])
    assert truncator.plan(TREE, context=64).tokens == 1 + together.argmax()


def test_scores_that_promise_too_much_count_less(table):
    torch.manual_seed(0)
    truncator = Truncator(table, **EAGLE)
    for _ in range(2000):
        plan = truncator.plan(TREE, context=64)
        lucky = torch.rand(()) < 0.5
        truncator.observe(plan, 1 + round(plan.expected_accepted) if lucky else 1)
    assert truncator.plan(TREE, 64).acceptance_ratio == pytest.approx(0.5, abs=0.2)


def test_the_clock_counts_what_the_table_lacks(table):
    plans = []
    for unpriced_us in (0.0, 1e5):
        truncator = Truncator(table, **EAGLE)
        for _ in range(200):
            plan = truncator.plan(TREE, context=64)
            step_us = plan.step_cost_us + unpriced_us
            truncator.observe(plan, 2, step_us=step_us)
        plans.append(truncator.plan(TREE, context=64))
    assert plans[0].tokens < plans[1].tokens


def test_the_ratio_never_learns(table):
    truncator = Truncator(table, objective="ratio", **EAGLE)
    plan = truncator.plan(TREE, context=64)
    for _ in range(20):
        truncator.observe(plan, plan.tokens)
    assert torch.equal(truncator.plan(TREE, 64).keep, plan.keep)


@pytest.mark.parametrize("committed", [0, 8])
def test_impossible_counts_are_refused(table, committed):
    """More than was verified, or fewer than requests: a root forgotten."""
    truncator = Truncator(table, **EAGLE)
    plan = truncator.plan(TREE, context=64)
    with pytest.raises(ConfigError, match=f"committed_tokens {committed} is not"):
        truncator.observe(plan, committed)


def test_context_is_covered_to_the_nearest_step(table):
    """130 is read as 128; neither leaves the domain."""
    truncator = Truncator(table, objective="ratio", **EAGLE)
    near, exact = (truncator.plan(TREE, context=c) for c in (130, 128))
    assert near.step_cost_us == exact.step_cost_us
    assert truncator.plan(TREE, context=250).step_cost_us > exact.step_cost_us


def test_outside_is_refused_or_marked(table):
    with pytest.raises(DataError, match="context 999 is outside"):
        Truncator(table, **EAGLE).plan(TREE, context=999)
    clamped = Truncator(table, outside="clamp", **EAGLE).plan(TREE, context=999)
    assert clamped.caveats == ("context 999 read as 256",)


def test_a_tree_larger_than_was_measured(table):
    large = torch.ones(1, 40)
    with pytest.raises(DataError, match="41 tokens with their roots, and 16"):
        Truncator(table, **EAGLE).plan(large, context=64)
    plan = Truncator(table, outside="clamp", **EAGLE).plan(large, context=64)
    assert plan.tokens <= 16
    assert plan.caveats == ("of 41 tokens at most 16 are verified",)


SAMPLED = {"drafts": "sampled", "acceptance": "rejection"}
FIXED = {"objective": "fixed", "width": 3, "depth": 2}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"objective": "stop"}, "is not one of ratio, rate, fixed"),
        ({"allocation": "fair"}, "is not one of"),
        ({"outside": "Refuse"}, "is not one of"),
        ({"draft_us": float("nan")}, "draft_us nan must be finite"),
        ({"draft_us": -1.0}, "at least 0"),
        ({"draft_us": "5 ms"}, "no number"),
        ({"capture_sizes": [4, 2]}, "increasing"),
        ({"capture_sizes": 5}, "whole numbers"),
        ({"calibration": abs}, "give a Calibration"),
        ({"calibration": "tables"}, "give a Calibration"),
        ({"table": "1.0.0.json"}, r"CostTable\.load"),
        ({"table": None}, "needs a table and decides width and depth"),
        ({"width": 4, "depth": 2}, "objective='fixed' with both"),
        (FIXED | {"width": None}, "width None is no number"),
        (FIXED | {"depth": None}, "depth None is no number"),
        (FIXED | {"width": 2.5}, "must be a whole number"),
        (FIXED | {"width": 0}, "at least 1"),
        # p/q rejection of sampled drafts cannot be cut by their own scores.
        (SAMPLED, "would change what the model says.*Lossless"),
        (SAMPLED | {"objective": "ratio"}, "would change what the model says"),
        (SAMPLED | FIXED, "would change what the model says"),
    ],
)
def test_arguments_are_checked_at_once(table, words, says):
    with pytest.raises(ConfigError, match=says):
        Truncator(**{"table": table, **EAGLE, **words})


@pytest.mark.parametrize("context", [float("nan"), -1, None, "long"])
def test_a_context_that_is_none_is_refused(table, context):
    with pytest.raises(ConfigError, match="context"):
        Truncator(table, outside="clamp", **EAGLE).plan(TREE, context)


@pytest.mark.parametrize("step_us", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_teaches_nothing(table, step_us):
    """A NaN in a running mean would never leave it."""
    truncator = Truncator(table, **EAGLE)
    plan = truncator.plan(TREE, context=64)
    with pytest.raises(ConfigError, match="step_us"):
        truncator.observe(plan, 1, step_us=step_us)
    assert torch.equal(truncator.plan(TREE, 64).keep, plan.keep)


def test_counts_may_be_tensors(table):
    truncator = Truncator(table, **EAGLE)
    truncator.observe(truncator.plan(TREE, context=64), torch.tensor(2))
    assert isinstance(truncator.plan(TREE, 64).acceptance_ratio, float)


def test_no_more_is_expected_than_is_verified(table):
    truncator = Truncator(table, draft_us=1e6, **EAGLE)
    for _ in range(200):
        plan = truncator.plan(TREE / 4.0, context=64)
        truncator.observe(plan, plan.tokens)
    plan = truncator.plan(SURE, context=64)
    assert plan.acceptance_ratio > 1.5
    assert plan.expected_tokens == plan.tokens


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_a_slower_machine_changes_no_plan_whose_cost_is_whole(calibrated, slower):
    """Its clock would be taken for time that no choice can save."""
    depth = torch.ones(TREE.shape, dtype=torch.int64)
    blind, told = (Truncator(calibrated, **EAGLE) for _ in range(2))
    for _ in range(20):
        plans = [each.plan(TREE, 64, depth=depth) for each in (blind, told)]
        assert torch.equal(plans[0].keep, plans[1].keep)
        blind.observe(plans[0], 2)
        told.observe(plans[1], 2, step_us=slower * float(plans[1].step_cost_us))


def test_a_batch_learns_from_smaller_ones(table):
    truncator = Truncator(table, **EAGLE)
    for _ in range(50):
        plan = truncator.plan(SURE, context=64)
        truncator.observe(plan, 1)
    assert truncator.plan(torch.cat([TREE, TREE]), 64).acceptance_ratio < 0.5


def test_rungs_beyond_the_costs_are_not_dropped_in_silence(table):
    """A tree that would run on a tier that was never covered."""
    sure, capture_sizes = torch.ones(1, 15), [8, 128]
    with pytest.raises(DataError, match="run as 128 tokens"):
        Truncator(table, capture_sizes=capture_sizes, **EAGLE).plan(sure, context=64)
    plan = Truncator(table, capture_sizes=capture_sizes, outside="clamp", **EAGLE).plan(
        sure, 64
    )
    assert plan.tokens == 8
    assert plan.caveats == ("of 128 tokens at most 16 are verified",)


def test_a_table_of_captured_widths_keeps_them(table):
    """Costs are at its capture sizes already; another would be padded twice."""
    captured = replace(table, axes=replace(table.axes, capture_sizes=(1, 2, 4, 8)))
    with pytest.raises(ConfigError, match=r"captured widths \[1, 2, 4, 8\]"):
        Truncator(captured, capture_sizes=[2, 6], **EAGLE)
    words = {"allocation": "uniform", "capture_sizes": [1, 4], **EAGLE}
    plan = Truncator(captured, objective="ratio", **words).plan(TREE[:, :3], 64)
    assert int(plan.widths[0]) in (1, 2, 3, 4)
    assert captured.max_tokens(2) == 16


def test_long_contexts_are_covered_once(table, monkeypatch):
    truncator, read = Truncator(table, outside="clamp", **EAGLE), []
    costs = CostTable.costs
    monkeypatch.setattr(
        CostTable, "costs", lambda *given: read.append(given) or costs(*given)
    )
    plans = [truncator.plan(TREE, context=c) for c in (1000, 1001)]
    assert plans[0].step_cost_us == plans[1].step_cost_us
    assert plans[1].caveats == ("context 1001 read as 256",)
    assert len(read) == 1


def test_a_table_cannot_be_written_through_its_costs(table):
    with pytest.raises(ValueError, match="read-only"):
        table.step_cost_us(1, 64)[1] = 0.0


DEPTH = torch.tensor([[1, 1, 2, 2, 3, 0]])


def test_the_tables_own_calibration_is_the_default(calibrated):
    half = Calibration((0.0, 1.0), (0.0, 0.5))
    own, named, believed, doubted = (
        Truncator(calibrated, **words, **EAGLE).plan(SURE, 64, depth=DEPTH)
        for words in (
            {},
            {"calibration": "table"},
            {"calibration": None},
            {"calibration": half},
        )
    )
    assert own.expected_accepted == named.expected_accepted
    assert believed.expected_accepted == int(believed.keep.sum())
    assert doubted.expected_accepted == pytest.approx(int(doubted.keep.sum()) / 2)
    scores = Calibration.of(calibrated.acceptance).on_cpu(SURE.numpy())
    assert own.expected_accepted == pytest.approx(scores[own.keep.numpy()].sum())


@pytest.mark.parametrize(
    ("deepest", "overhead_us"), [(0, 10.0), (1, 140.0), (3, 490.0)]
)
def test_with_depths_the_cost_is_of_the_whole_step(calibrated, deepest, overhead_us):
    """Drafting to the deepest level and what is fixed; plain decoding drafts none."""
    depth = torch.zeros(1, 6, dtype=torch.int64)
    depth[0, -1] = deepest
    plan = Truncator(calibrated, **EAGLE).plan(TREE, 64, depth=depth)
    verify_us = calibrated.step_cost_us(1, 64)[plan.tokens]
    assert plan.step_cost_us == pytest.approx(verify_us + overhead_us)
    assert plan.includes == ("verify", "draft", "fixed")
    alone = Truncator(calibrated, **EAGLE).plan(TREE, 64)
    assert alone.includes == ("verify",)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0.0, 900.0), st.floats(0.1, 900.0), st.floats(0.3, 0.95))
def test_the_width_is_the_best_by_rounds(table, fixed_us, token_us, chance):
    """Of all, where rounds take a line in the drafts beside forward and drafting."""
    widths, beside_us = np.array([2, 4, 8]), fixed_us + token_us * np.arange(13.0)
    us = table.cost.latency_us(widths, 4.0, 64.0, 1.0) + beside_us[widths - 1]
    rounds = tuple(TimedRound(n, 4.0, 64.0, t) for n, t in zip(widths, us, strict=True))
    clock = DraftClock(1, (0.0, 0.0), 7.0, 7.0, rounds=rounds)
    clock = by_rounds(clock, table.cost, 0.0)
    known = replace(table, drafting=Drafting("none", "a test", (clock,)))
    tree, one = chance ** torch.arange(1.0, 13.0)[None], torch.ones(1, 12, dtype=int)
    plan = Truncator(known, objective="ratio", **EAGLE).plan(tree, 64, depth=one)
    step_us = table.step_cost_us(1, 64)[1:14] + beside_us
    assert plan.step_cost_us == pytest.approx(step_us[plan.tokens - 1], rel=1e-4)
    rate = (1.0 + np.append(0.0, tree[0].double().cumsum(0))) / step_us
    assert rate[plan.tokens - 1] == pytest.approx(rate.max(), rel=1e-4)


def test_levels_that_were_not_clocked_are_refused_or_marked(calibrated):
    with pytest.raises(DataError, match="4 levels are drafted, and 3 were clocked"):
        Truncator(calibrated, **EAGLE).plan(TREE, 64, depth=DEPTH + 1)
    clamped = Truncator(calibrated, outside="clamp", **EAGLE)
    assert clamped.plan(TREE, 64, depth=DEPTH + 1).caveats == (
        "drafting 4 levels, of which 3 were clocked",
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deepest=st.integers(0, 6), level_us=st.floats(0.0, 1e6))
def test_levels_beyond_the_clock_take_what_the_clock_says(
    calibrated, deepest, level_us
):
    clock = DraftClock(1, (0.0, level_us, 3.0 * level_us), 10.0, 5.0)
    drafting = replace(calibrated.drafting, batches=(clock,))
    truncator = Truncator(
        replace(calibrated, drafting=drafting), outside="clamp", **EAGLE
    )
    depth = torch.full((1, 6), deepest)
    plan = truncator.plan(TREE, 64, depth=depth)
    overhead_us = float(plan.step_cost_us) - calibrated.step_cost_us(1, 64)[plan.tokens]
    assert overhead_us == pytest.approx(clock.beside_us(deepest), abs=1e-3)


def test_another_batch_drafts_as_the_nearest_and_is_marked(calibrated):
    """Batch 2 was verified but not clocked."""
    both = (torch.cat([each, each]) for each in (TREE, DEPTH))
    path_prob, depth = both
    plan = Truncator(calibrated, **EAGLE).plan(path_prob, 64, depth=depth)
    assert plan.caveats == ("drafting of batch 2 as of 1",)
