"""Rules: each maximises what it says, and the fixed point is the best there is."""

import numpy as np
import pytest

from evict_profile.bench.mixes import MIXES
from evict_profile.bench.policies import (
    Phase,
    earned,
    optimal_rate_per_us,
    optimal_widths,
    oracle_earned,
    rate_widths,
    ratio_widths,
)
from evict_profile.bench.shapes import CostShape, cost_shapes
from evict_profile.bench.trees import DEPTH, MOST_NODES

each_shape = pytest.mark.parametrize("shape", cost_shapes(), ids=lambda s: s.name)
BIMODAL = MIXES[2].draw(1, 400).phases[0]
OVERCONFIDENT = MIXES[-2].draw(1, 400).phases[0]


def rate_of(phase: Phase, cost_us: np.ndarray, width: np.ndarray) -> float:
    """Tokens over time."""
    found = earned(phase.true_benefit, cost_us, width)
    return found.tokens / found.us


def test_benefit_counts_the_targets_own_token() -> None:
    """One token at t = 1; each further t adds the next node's path probability."""
    nodes = BIMODAL.trees.path_prob
    assert np.all(BIMODAL.benefit[:, 1] == 1.0)
    np.testing.assert_allclose(np.diff(BIMODAL.benefit[:, 1:]), nodes, atol=1e-12)


@each_shape
def test_rules_equal_brute_force(shape: CostShape) -> None:
    """No t scores higher, and no smaller t as high."""
    cost_us, rate = shape.step_us, 2.5e-4
    ratio = ratio_widths(BIMODAL.benefit, cost_us)
    by_rate = rate_widths(BIMODAL.benefit, cost_us, rate)
    for step in range(50):
        benefit = BIMODAL.benefit[step]
        tokens = range(1, MOST_NODES + 2)
        assert ratio[step] == max(tokens, key=lambda t: benefit[t] / cost_us[t])
        assert by_rate[step] == max(
            tokens, key=lambda t: benefit[t] - rate * cost_us[t]
        )


@each_shape
def test_the_fixed_point_is_the_throughput_of_its_own_widths(shape: CostShape) -> None:
    """lambda = tokens / time, and the rule at lambda earns lambda."""
    rate = optimal_rate_per_us(BIMODAL.true_benefit, shape.step_us)
    width = rate_widths(BIMODAL.true_benefit, shape.step_us, rate)
    assert rate_of(BIMODAL, shape.step_us, width) == pytest.approx(rate, rel=1e-12)


@each_shape
@pytest.mark.parametrize("phase", [BIMODAL, OVERCONFIDENT], ids=["sure", "too sure"])
def test_no_rule_that_cuts_these_trees_earns_more(
    phase: Phase, shape: CostShape
) -> None:
    """Not the ratio, a wrong rate, any fixed width, or widths at random."""
    cost_us = shape.step_us
    best = rate_of(phase, cost_us, optimal_widths(phase, cost_us))
    steps = len(phase.benefit)
    random = np.random.default_rng(0).integers(1, MOST_NODES + 2, steps)
    rivals = [np.full(steps, width) for width in range(1, MOST_NODES + 2)]
    rivals += [ratio_widths(phase.benefit, cost_us), random]
    rivals += [rate_widths(phase.benefit, cost_us, wrong * best) for wrong in (0.5, 2)]
    assert all(rate_of(phase, cost_us, w) <= best * (1 + 1e-12) for w in rivals)


@each_shape
@pytest.mark.parametrize("phase", [BIMODAL, OVERCONFIDENT], ids=["sure", "too sure"])
def test_the_oracle_earns_at_least_as_much(phase: Phase, shape: CostShape) -> None:
    """Knowing what will be accepted is never worth less than knowing its chances."""
    known = oracle_earned(phase, shape.step_us)
    chances = rate_of(phase, shape.step_us, optimal_widths(phase, shape.step_us))
    assert known.tokens / known.us >= chances * (1 - 1e-12)


def test_accepted_lengths_are_a_distribution_with_the_trees_mean() -> None:
    """Shares add up to one, and their mean is the sum of acceptance probabilities."""
    share = BIMODAL.accepted_length_share
    assert share.min() >= 0.0
    assert share.sum() == pytest.approx(1.0)
    mean = BIMODAL.trees.accept_prob.sum(axis=1).mean()
    assert share @ np.arange(DEPTH + 1) == pytest.approx(mean)


def test_weighted_rows_stand_for_repeated_ones() -> None:
    """A share is what copying rows would do."""
    benefit, cost_us = BIMODAL.benefit[:2], cost_shapes()[3].step_us
    copied = optimal_rate_per_us(benefit[[0, 1, 1, 1]], cost_us)
    weighed = optimal_rate_per_us(benefit, cost_us, np.array([0.25, 0.75]))
    assert weighed == pytest.approx(copied, rel=1e-12)
