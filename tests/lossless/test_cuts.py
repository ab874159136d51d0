"""What each rule keeps, on scores that can be checked by hand."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lossless.cases import crossed, pooled_ratio
from tests.lossless.proof.cuts import (
    RATE,
    REACHED,
    Cut,
    Spent,
    by_score,
    depth_at_ratio,
    drafted,
    fixed_width,
    lagged,
    online_rate,
    rate,
    ratio,
    score_threshold,
    stop_at_drop,
    stop_at_rate,
    width_from_rate,
)


def tenths(*values):
    return tuple(Fraction(value, 10) for value in values)


SCORES = tenths(9, 5, 6)
STAIRS = tenths(10, 16, 26, 26)
TIED = tenths(10, 19, 90, 90)
DEEP = tenths(10, 16, 19, 22)
HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        (Cut(fixed_width, drafted, width=2), {0, 1}),
        (Cut(fixed_width, by_score, width=2), {0, 2}),
        (Cut(score_threshold, by_score, bound=Fraction(6, 10)), {0, 2}),
        # Marginal costs .6, 1, 0: node 1 does not pay at rate 1.
        (Cut(stop_at_rate, drafted, costs=STAIRS, rate=Fraction(1)), {0}),
        # By score .9, .6, .5: the second still does not pay.
        (Cut(stop_at_rate, by_score, costs=STAIRS, rate=Fraction(1)), {0}),
        (Cut(stop_at_rate, by_score, costs=STAIRS, rate=Fraction(1, 2)), {0, 1, 2}),
        # Ratios 1, 1.19, .92, 1.15: the first drop is after one node, the top too.
        (Cut(stop_at_drop, drafted, costs=STAIRS), {0}),
        (Cut(ratio, by_score, costs=STAIRS), {0}),
        # Where the last cost falls to 1.8, its ratio is 1.67: a stop does not see it.
        (Cut(stop_at_drop, drafted, costs=tenths(10, 16, 26, 18)), {0}),
        (Cut(ratio, by_score, costs=tenths(10, 16, 26, 18)), {0, 1, 2}),
        # Gains less cost at rate 1/2: .5, 1.1, 1.2, 1.7.
        (Cut(rate, by_score, costs=STAIRS, rate=Fraction(1, 2)), {0, 1, 2}),
        (Cut(rate, by_score, costs=STAIRS, rate=Fraction(2)), set()),
        # Ratios 1, 1, .28: of equals the first is the highest, and no drop.
        (Cut(ratio, by_score, costs=TIED), set()),
        (Cut(stop_at_drop, drafted, costs=TIED), {0}),
        # A second level, taken for .45, lifts 1.9 / 1.6; a third, for .25, does not.
        (Cut(depth_at_ratio, levels=(1, 2, 3), costs=DEEP, share=HALF), {0, 1}),
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
    cuts = Cut(ratio, by_score, costs=table), Cut(stop_at_drop, drafted, costs=table)
    ends = [cut.keep(chain, ()) for cut in cuts]
    # The argmax takes the first of equal widths, a stop goes on over them.
    ratios = [(1 + sum(sorted(scores[1:])[::-1][:n])) / table[n] for n in range(4)]
    assert ratios[len(ends[0][0])] == ratios[len(ends[1][0])] == max(ratios)


def test_rules_with_a_memory_use_the_past_only():
    """A lagged width and an online rate change after a step, not within it."""
    spent = Spent((SCORES,), (frozenset({0, 1}),), emitted=2)
    last = Cut(lagged, drafted, REACHED, bound=Fraction(6, 10))
    assert last.keep((SCORES,), last.start) == (frozenset({0}),)
    assert last.after(last.start, spent) == (2,)
    online = Cut(online_rate, by_score, RATE, costs=STAIRS)
    assert online.after(online.start, spent) == (3, Fraction(36, 10))
    width = Cut(width_from_rate, drafted, RATE, costs=STAIRS, bound=Fraction(9, 10))
    assert width.keep((SCORES,), width.start) == (frozenset({0, 1, 2}),)
    assert width.keep((SCORES,), tenths(30, 36)) == (frozenset({0}),)


LOW = tenths(4, 3, 1)


@pytest.mark.parametrize(
    ("cut", "widths"),
    [
        (Cut(crossed, bound=Fraction(1, 2)), (0, 3)),
        # The two best of all at cost 1, then a step too high to climb.
        (Cut(pooled_ratio, costs=tenths(10, 10, 10, 90, 90, 90, 90)), (2, 0)),
    ],
    ids=str,
)
def test_what_a_batch_keeps(cut, widths):
    """Scores .9, .5, .6 and .4, .3, .1."""
    kept = cut.keep((SCORES, LOW), cut.start)
    assert tuple(map(len, kept)) == widths


def test_a_request_that_left_the_batch_decides_nothing():
    kept = Cut(crossed, bound=Fraction(1, 2)).keep((SCORES, ()), ())
    assert kept == (frozenset({0, 1, 2}), frozenset())
