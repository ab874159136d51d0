"""Rules with a past: the runtime's as the runtime has it, and the negative control."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evict_profile.bench.mixes import MIXES
from evict_profile.bench.online import (
    WARM_STEPS,
    DiscountedRate,
    past_rate_widths,
    runtime_widths,
)
from evict_profile.bench.policies import (
    Phase,
    earned,
    optimal_rate_per_us,
    rate_widths,
    ratio_widths,
)
from evict_profile.bench.shapes import CostShape, cost_shapes
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.decision import Rule
from evict_profile.runtime.on_cpu import decide
from evict_profile.runtime.past import Past

each_shape = pytest.mark.parametrize("shape", cost_shapes(), ids=lambda s: s.name)
UNION_US = cost_shapes()[3].step_us
HARD = MIXES[1].draw(3, 2000).phases[0]
BIMODAL = MIXES[2].draw(3, 2000).phases[0]
OVERCONFIDENT = MIXES[-2].draw(3, 2000).phases[0]
FAITH = Past(trust_prior_tokens=1e18)
"""Believes scores whatever becomes of them."""


def by_runtime(phase: Phase, cost_us: np.ndarray, past: Past) -> np.ndarray:
    """Widths on all steps of a phase."""
    return runtime_widths(phase.benefit, phase.committed, cost_us, replace(past))


def lost(phase: Phase, width: np.ndarray, cost_us: np.ndarray) -> float:
    """Share of the optimum that widths do not reach."""
    found = earned(phase.true_benefit, cost_us, width)
    best = optimal_rate_per_us(phase.true_benefit, cost_us)
    return 1.0 - found.tokens / found.us / best


@each_shape
def test_the_simulation_chooses_what_the_runtime_decides(shape: CostShape) -> None:
    """Step by step, at the same terms and costs; so that the two cannot drift."""
    steps, costs, past = 300, shape.step_us[1:], Past()
    trees, committed = OVERCONFIDENT.trees, OVERCONFIDENT.committed
    simulated = by_runtime(OVERCONFIDENT, shape.step_us, past)
    for step in range(steps):
        scores = trees.path_prob[step : step + 1]
        keep, k, _ = decide(scores, costs, Rule("ratio"), past.terms(1), None)
        assert simulated[step] == k + 1
        accepted = float(committed[step, k + 1]) - 1.0
        past.observe(1, accepted, scores[keep].sum(), costs[k], None)
    assert past.trust < 0.9


def test_the_simulation_learns_what_a_truncator_does(saved_table: Path) -> None:
    """A truncator on a table, told what each step brought, cuts every tree alike."""
    table = CostTable.load(saved_table)
    truncator = Truncator(table, drafts="topk", acceptance="target-only")
    phase = Phase(OVERCONFIDENT.trees.best(table.max_tokens(1) - 1))
    simulated = by_runtime(phase, table.step_cost_us(1, 64), Past())
    for step, scores in enumerate(phase.trees.path_prob[:300]):
        plan = truncator.plan(torch.from_numpy(scores[None]), context=64)
        assert int(plan.tokens) == simulated[step]
        truncator.observe(plan, int(phase.committed[step, simulated[step]]))
    assert len(set(simulated[:300])) > 2


@pytest.mark.parametrize(
    "rule",
    [
        lambda seen: runtime_widths(HARD.benefit, seen, UNION_US, Past()),
        lambda seen: past_rate_widths(
            HARD.benefit, seen, UNION_US, DiscountedRate.warm(UNION_US)
        ),
    ],
    ids=["runtime", "rate of the past"],
)
def test_no_step_sees_its_own_outcome_or_a_later_one(
    rule: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Another future leaves the widths before it as they were."""
    other = HARD.committed.copy()
    other[1000:] = HARD.committed[:1000]
    known, changed = rule(HARD.committed), rule(other)
    assert np.array_equal(known[:1001], changed[:1001])
    assert not np.array_equal(known, changed)


@each_shape
def test_the_runtimes_rule_lies_between_the_ratio_and_the_rate(
    shape: CostShape,
) -> None:
    """With faith: no memory is EVICT's ratio, an endless one the optimal rate."""
    cost_us = shape.step_us
    forgetful = replace(FAITH, memory_half_life_steps=1e-3)
    assert np.array_equal(
        by_runtime(BIMODAL, cost_us, forgetful), ratio_widths(BIMODAL.benefit, cost_us)
    )
    endless = replace(FAITH, memory_half_life_steps=1e9)
    assert lost(BIMODAL, by_runtime(BIMODAL, cost_us, endless), cost_us) < 0.002


def test_trust_wins_back_most_of_what_overconfidence_costs() -> None:
    """Claims taken at their word cut too late; trust mends most of it."""
    trusting, faithful = (
        lost(OVERCONFIDENT, by_runtime(OVERCONFIDENT, UNION_US, past), UNION_US)
        for past in (Past(), FAITH)
    )
    assert trusting < 0.6 * faithful


def test_the_rate_starts_at_plain_decoding_and_halves_its_memory() -> None:
    """After a half-life without tokens, the start weighs half."""
    rate = DiscountedRate.warm(np.array([0.0, 100.0]))
    assert rate.per_us == pytest.approx(1.0 / 100.0)
    for _ in range(32):
        rate.observe(0.0, 0.0)
    assert rate.tokens == pytest.approx(WARM_STEPS / 2.0)


def test_the_rate_is_tokens_over_time_and_not_a_mean_of_ratios() -> None:
    """One short step and one long one: 3 tokens in 400 us."""
    rate = DiscountedRate(0.0, 0.0, keep=1.0)
    rate.observe(1.0, 100.0)
    rate.observe(2.0, 300.0)
    assert rate.per_us == pytest.approx(3.0 / 400.0)


def test_a_rate_that_nothing_moves_makes_the_vectorised_rule() -> None:
    """The loop over steps chooses what the rule chooses for all steps at once."""
    heavy = DiscountedRate(2e-4 * 1e18, 1e18, keep=1.0)
    width = past_rate_widths(HARD.benefit, HARD.committed, UNION_US, heavy)
    assert np.array_equal(width, rate_widths(HARD.benefit, UNION_US, heavy.per_us))


def test_the_rate_of_the_past_is_right_where_difficulty_is_drawn_anew() -> None:
    """It is a fair control: it loses under half a per cent there, but not where
    scores promise too much."""

    def loss(phase: Phase) -> float:
        rate = DiscountedRate.warm(UNION_US)
        width = past_rate_widths(phase.benefit, phase.committed, UNION_US, rate)
        return lost(phase, width, UNION_US)

    assert loss(HARD) < 0.005
    assert loss(BIMODAL) < 0.005
    assert loss(OVERCONFIDENT) > 0.02
