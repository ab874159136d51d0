"""What each rule keeps, on scores that can be checked by hand."""

from fractions import Fraction
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lossless.cases import crossed, pooled_ratio
from tests.lossless.proof import cuts as rules
from tests.lossless.proof.cuts import RATE, REACHED, Cut, Spent, by_score, drafted


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
        (Cut(rules.fixed_width, drafted, width=2), {0, 1}),
        (Cut(rules.fixed_width, by_score, width=2), {0, 2}),
        (Cut(rules.score_threshold, by_score, bound=Fraction(6, 10)), {0, 2}),
        # Marginal costs .6, 1, 0: node 1 does not pay at rate 1.
        (Cut(rules.stop_at_rate, drafted, costs=STAIRS, rate=Fraction(1)), {0}),
        # By score .9, .6, .5: the second still does not pay.
        (Cut(rules.stop_at_rate, by_score, costs=STAIRS, rate=Fraction(1)), {0}),
        (Cut(rules.stop_at_rate, by_score, costs=STAIRS, rate=HALF), {0, 1, 2}),
        # Ratios 1, 1.19, .92, 1.15: the first drop is after one node, the top too.
        (Cut(rules.stop_at_drop, drafted, costs=STAIRS), {0}),
        (Cut(rules.ratio, by_score, costs=STAIRS), {0}),
        # Where the last cost falls to 1.8, its ratio is 1.67: a stop does not see it.
        (Cut(rules.stop_at_drop, drafted, costs=tenths(10, 16, 26, 18)), {0}),
        (Cut(rules.ratio, by_score, costs=tenths(10, 16, 26, 18)), {0, 1, 2}),
        # Gains less cost at rate 1/2: .5, 1.1, 1.2, 1.7.
        (Cut(rules.rate, by_score, costs=STAIRS, rate=Fraction(1, 2)), {0, 1, 2}),
        (Cut(rules.rate, by_score, costs=STAIRS, rate=Fraction(2)), set()),
        # Ratios 1, 1, .28: of equals the first is the highest, and no drop.
        (Cut(rules.ratio, by_score, costs=TIED), set()),
        (Cut(rules.stop_at_drop, drafted, costs=TIED), {0}),
        # A second level, taken for .45, lifts 1.9 / 1.6; a third, for .25, does not.
        (Cut(rules.depth_at_ratio, levels=(1, 2, 3), costs=DEEP, share=HALF), {0, 1}),
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
    scores = tuple(accumulate(tenths(*factors), mul))
    table = tuple(accumulate(tenths(*sorted(rises)), initial=Fraction(1)))
    whole = Cut(rules.ratio, by_score, costs=table)
    first = Cut(rules.stop_at_drop, drafted, costs=table)
    ends = [cut.keep((scores,), ()) for cut in (whole, first)]
    # The argmax takes the first of equal widths, a stop goes on over them.
    ratios = [(1 + sum(scores[:n])) / table[n] for n in range(4)]
    assert ratios[len(ends[0][0])] == ratios[len(ends[1][0])] == max(ratios)


def test_rules_with_a_memory_use_the_past_only():
    """A lagged width and an online rate change after a step, not within it."""
    spent = Spent((SCORES,), (frozenset({0, 1}),), emitted=2)
    last = Cut(rules.lagged, drafted, REACHED, bound=Fraction(6, 10))
    assert last.keep((SCORES,), last.start) == (frozenset({0}),)
    assert last.after(last.start, spent) == (2,)
    online = Cut(rules.online_rate, by_score, RATE, costs=STAIRS)
    assert online.after(online.start, spent) == (3, Fraction(36, 10))
    width = Cut(
        rules.width_from_rate, drafted, RATE, costs=STAIRS, bound=Fraction(9, 10)
    )
    assert width.keep((SCORES,), width.start) == (frozenset({0, 1, 2}),)
    assert width.keep((SCORES,), tenths(30, 36)) == (frozenset({0}),)


def test_what_a_batch_keeps():
    """Scores .9, .5, .6 and .4, .3, .1; one that left the batch decides nothing."""
    across = Cut(crossed, bound=HALF)
    # The two best of all at cost 1, then a step too high to climb.
    pooled = Cut(pooled_ratio, costs=tenths(10, 10, 10, 90, 90, 90, 90))
    for cut, other, widths in (
        *((across, tenths(4, 3, 1), [0, 3]), (across, (), [3, 0])),
        (pooled, tenths(4, 3, 1), [2, 0]),
    ):
        assert [*map(len, cut.keep((SCORES, other), cut.start))] == widths
