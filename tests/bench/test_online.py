"""What is learnt online: rates, trust, and the widths chosen with them."""

import numpy as np
import pytest

from evict_profile.bench.mixes import MIXES
from evict_profile.bench.online import (
    WARM_STEPS,
    DiscountedRate,
    Trust,
    run_online,
)
from evict_profile.bench.policies import (
    earned,
    optimal_rate_per_us,
    optimal_widths,
    rate_widths,
)
from evict_profile.bench.shapes import cost_shapes

UNION_US = cost_shapes()[3].step_us
HARD = MIXES[1].draw(3, 2000).phases[0]
OVERCONFIDENT = MIXES[-1].draw(3, 2000).phases[0]


class Known:
    """An estimator that never learns."""

    rate = 2e-4

    def observe(self, tokens: float, us: float, /) -> None:
        """Keep to what is known."""


def test_a_known_rate_makes_the_vectorised_rule() -> None:
    """The loop over steps chooses what the rule chooses for all steps at once."""
    run = run_online(HARD.benefit, HARD.committed, UNION_US, Known())
    assert np.array_equal(run.width, rate_widths(HARD.benefit, UNION_US, Known.rate))
    assert np.all(run.rate_per_us == Known.rate)


def test_no_step_sees_its_own_outcome_or_a_later_one() -> None:
    """Another future leaves the widths before it as they were."""
    other = HARD.committed.copy()
    other[1000:] = HARD.committed[:1000]
    runs = [
        run_online(HARD.benefit, seen, UNION_US, DiscountedRate.warm(UNION_US), Trust())
        for seen in (HARD.committed, other)
    ]
    assert np.array_equal(runs[0].width[:1001], runs[1].width[:1001])
    assert not np.array_equal(runs[0].width, runs[1].width)


def test_the_rate_starts_at_plain_decoding_and_halves_its_memory() -> None:
    """After a half-life without tokens, the start weighs half."""
    cost_us = np.array([0.0, 100.0])
    rate = DiscountedRate.warm(cost_us, half_life_steps=8.0)
    assert rate.rate == pytest.approx(1.0 / 100.0)
    for _ in range(8):
        rate.observe(0.0, 0.0)
    assert rate.tokens == pytest.approx(WARM_STEPS / 2.0)


def test_the_rate_is_tokens_over_time_and_not_a_mean_of_ratios() -> None:
    """One short step and one long one: 3 tokens in 400 us."""
    rate = DiscountedRate(0.0, 0.0, keep=1.0)
    rate.observe(1.0, 100.0)
    rate.observe(2.0, 300.0)
    assert rate.rate == pytest.approx(3.0 / 400.0)


def test_the_online_rate_loses_less_than_three_thousandths() -> None:
    """On steady text, against the optimum on the same trees."""
    run = run_online(
        HARD.benefit, HARD.committed, UNION_US, DiscountedRate.warm(UNION_US)
    )
    online, best = (
        earned(HARD.true_benefit, UNION_US, width)
        for width in (run.width, optimal_widths(HARD, UNION_US))
    )
    assert online.tokens / online.us > 0.997 * best.tokens / best.us
    optimum = optimal_rate_per_us(HARD.true_benefit, UNION_US)
    assert run.rate_per_us[500:].mean() == pytest.approx(optimum, rel=0.02)


def test_trust_wins_back_most_of_what_overconfidence_costs() -> None:
    """Committed tokens against expected ones cut too late; trust mends most of it."""

    def loss(trust: Trust | None) -> float:
        phase, rate = OVERCONFIDENT, DiscountedRate.warm(UNION_US)
        run = run_online(phase.benefit, phase.committed, UNION_US, rate, trust)
        found = earned(phase.true_benefit, UNION_US, run.width)
        best = optimal_rate_per_us(phase.true_benefit, UNION_US)
        return 1.0 - found.tokens / found.us / best

    assert loss(Trust()) < 0.5 * loss(None)


def test_trust_returns_to_one_when_nothing_is_verified() -> None:
    """A spell of failures cannot lock all trees to their roots."""
    trust = Trust()
    for _ in range(200):
        trust.observe(0.0, 3.0)
    assert trust.rate < 0.1
    for _ in range(400):
        trust.observe(0.0, 0.0)
    assert trust.rate == pytest.approx(1.0, abs=0.02)
