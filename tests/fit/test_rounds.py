"""The rest of rounds is a line where it rises above noise; else one number."""

import numpy as np
import pytest

from evict_profile.cost_model import CostShape, ForwardCost, HingeCost, Term
from evict_profile.drafting import DraftClock, TimedRound
from evict_profile.fit.rounds import by_rounds

ONE = HingeCost((Term("one"),), np.zeros(1))
COST = ForwardCost(CostShape(1, 0, 0), ONE, ONE, 1.0)


def rest(us, widths=(2, 4, 8), noise=0.01):
    """Fixed time and time a draft, of rounds that take nothing else."""
    rounds = tuple(
        TimedRound(n, 1.0, 64.0, each) for n, each in zip(widths, us, strict=True)
    )
    clock = by_rounds(DraftClock(1, (0.0, 0.0), 7.0, 3.0, rounds=rounds), COST, noise)
    assert clock.plain_fixed_us == 3.0
    return clock.fixed_us, clock.token_us


@pytest.mark.parametrize(
    ("us", "fixed_us", "token_us"),
    [
        ([110.0, 130.0, 170.0], 100.0, 10.0),
        ([10.0, 30.0, 70.0], 0.0, 10.0),
        ([100.0, 100.4, 101.0], 100.4, 0.0),
        ([130.0, 110.0, 100.0], 110.0, 0.0),
    ],
)
def test_a_line_a_line_from_zero_noise_and_a_fall(us, fixed_us, token_us):
    assert rest(us) == pytest.approx((fixed_us, token_us), abs=0.1)


def test_one_width_gives_one_number():
    assert rest([90.0], widths=(4,)) == (90.0, 0.0)


def test_a_clock_without_rounds_stays():
    clock = DraftClock(1, (0.0, 5.0), 7.0, 3.0)
    assert by_rounds(clock, COST, 0.01) is clock
