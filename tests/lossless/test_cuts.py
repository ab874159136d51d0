"""What each rule keeps, on scores that can be checked by hand."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.lossless.cuts import (
    FixedWidth,
    Lagged,
    OnlineRate,
    Rate,
    Ratio,
    ScoreThreshold,
    Spent,
    StopAtDrop,
    StopAtRate,
    WidthFromRate,
)
from tests.lossless.further_cuts import (
    Best,
    Crossed,
    LaggedTotal,
    OneWay,
    PooledRatio,
    StopByDepth,
    StopByScore,
)


def tenths(*values):
    return tuple(Fraction(value, 10) for value in values)


SCORES = tenths(9, 5, 6)
STAIRS = tenths(10, 16, 26, 26)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        (FixedWidth(2), {0, 1}),
        (Best(2), {0, 2}),
        (ScoreThreshold(Fraction(6, 10)), {0, 2}),
        # Marginal costs .6, 1, 0: node 1 does not pay at rate 1.
        (StopAtRate(STAIRS, Fraction(1)), {0}),
        # By score .9, .6, .5: the second still does not pay.
        (StopByScore(STAIRS, Fraction(1)), {0}),
        (StopByScore(STAIRS, Fraction(1, 2)), {0, 1, 2}),
        # Ratios 1, 1.19, .92, 1.15: the first drop is after one node, the top too.
        (StopAtDrop(STAIRS), {0}),
        (Ratio(STAIRS), {0}),
        # Where the last cost falls to 1.8, its ratio is 1.67: a stop does not see it.
        (StopAtDrop(tenths(10, 16, 26, 18)), {0}),
        (Ratio(tenths(10, 16, 26, 18)), {0, 1, 2}),
        # Gains less cost at rate 1/2: .5, 1.1, 1.2, 1.7.
        (Rate(STAIRS, Fraction(1, 2)), {0, 1, 2}),
        (Rate(STAIRS, Fraction(2)), set()),
    ],
    ids=str,
)
def test_what_a_rule_keeps(cut, kept):
    """Scores .9, .5, .6 at costs 1, 1.6, 2.6, 2.6."""
    assert cut.keep((SCORES,), cut.start) == (frozenset(kept),)


@given(
    st.lists(st.integers(1, 10), min_size=3, max_size=3),
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
)
def test_on_convex_costs_the_global_argmax_is_the_first_drop(factors, rises):
    """Falling scores over rising marginal costs: the ratio has one hill."""
    scores = [Fraction(1)]
    for factor in factors:
        scores.append(scores[-1] * Fraction(factor, 10))
    costs = [Fraction(1)]
    for rise in sorted(rises):
        costs.append(costs[-1] + Fraction(rise, 10))
    chain, table = (tuple(scores[1:]),), tuple(costs)
    ends = [cut.keep(chain, ()) for cut in (Ratio(table), StopAtDrop(table))]
    # The argmax takes the first of equal widths, a stop goes on over them.
    ratio = [(1 + sum(sorted(scores[1:])[::-1][:n])) / table[n] for n in range(4)]
    assert ratio[len(ends[0][0])] == ratio[len(ends[1][0])] == max(ratio)


def test_rules_with_a_memory_use_the_past_only():
    """A lagged width and an online rate change after a step, not within it."""
    spent = Spent((SCORES,), (frozenset({0, 1}),), emitted=2)
    lagged = Lagged(Fraction(6, 10))
    assert lagged.keep((SCORES,), lagged.start) == (frozenset({0}),)
    assert lagged.after(lagged.start, spent) == (2,)
    online = OnlineRate(STAIRS)
    assert online.after(online.start, spent) == (3, Fraction(36, 10))
    width = WidthFromRate(STAIRS, Fraction(9, 10))
    assert width.keep((SCORES,), width.start) == (frozenset({0, 1, 2}),)
    assert width.keep((SCORES,), tenths(30, 36)) == (frozenset({0}),)


LOW = tenths(4, 3, 1)


@pytest.mark.parametrize(
    ("cut", "widths"),
    [
        (Crossed(Fraction(1, 2)), (0, 3)),
        (OneWay(Fraction(6, 10)), (3, 2)),
        (LaggedTotal(Fraction(1, 2)), (1, 0)),
        # The two best of all at cost 1, then a step too high to climb.
        (PooledRatio(tenths(10, 10, 10, 90, 90, 90, 90)), (2, 0)),
        # Sums .9 + .4, .5 + .3, .6 + .1.
        (StopByDepth(Fraction(8, 10)), (2, 2)),
    ],
    ids=str,
)
def test_what_a_batch_keeps(cut, widths):
    """Scores .9, .5, .6 and .4, .3, .1."""
    kept = cut.keep((SCORES, LOW), cut.start)
    assert tuple(map(len, kept)) == widths


def test_a_request_that_left_the_batch_decides_nothing():
    """Without a partner a request verifies all, or what a rule allows it alone."""
    assert Crossed(Fraction(1, 2)).keep((SCORES, ()), ()) == (
        frozenset({0, 1, 2}),
        frozenset(),
    )
    assert StopByDepth(Fraction(6, 10)).keep(((), LOW), ()) == (frozenset(),) * 2
