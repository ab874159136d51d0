"""One length for a traffic, and one by batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import of_lengths
from evict_profile.advice.advise import Advisor, Gain
from evict_profile.advice.decide import decide
from evict_profile.advice.plan import (
    DraftPlan,
    Range,
    plan,
    schedule,
    traffic_of,
)
from evict_profile.errors import ConfigError, DataError
from evict_profile.stats import Estimate
from tests.advice.served import planted, served_table

LENGTHS = of_lengths({1: 1.8, 2: 2.4, 3: 2.8}, "")


def by_batch(speeds):
    """An advisor whose speeds by batch and K are these."""
    length = dict(zip(LENGTHS.levels.tolist(), LENGTHS.committed, strict=True))
    ratios = {b: {k: length[k] / v for k, v in s.items()} for b, s in speeds.items()}
    return Advisor(planted(ratios), LENGTHS)


def gained(value):
    return Gain(3, Estimate(value, 0.9 * value, 1.1 * value), "table")


class TestSchedule:
    @given(st.lists(st.floats(0.5, 2.5), min_size=6, max_size=6))
    def test_each_batch_has_the_length_of_advice_on_it_alone(self, growth):
        """Also between batches that ran, at steps of K = 2 and 4 by their growth."""
        batches, lengths = (1, 8, 16), "2:2.1,4:2.6"
        widths = [(b, k) for b in batches for k in (2, 4)]
        drafting = [(*w, 10.0 * g) for w, g in zip(widths, growth, strict=True)]
        table = served_table(*((b, 0, 10.0) for b in batches), *drafting)
        ranges = schedule(decide(table, lengths).advisor)
        for batch in range(1, 17):
            [own] = [each.drafts for each in ranges if each.has(batch)]
            assert decide(table, lengths, batch=batch).plan.drafts == own

    @pytest.mark.parametrize(
        ("graphs", "ranges"),
        [
            ((4, 1), (Range(1, 1, 3), Range(2, 4, 0))),
            ((2, 4), (Range(1, 2, 2), Range(3, 4, 0))),
            ((8,), (Range(1, 4, 0),)),
            ((2,), (Range(1, 3, 2), Range(4, 4, 0))),
        ],
    )
    def test_a_batch_drafts_as_the_graph_that_it_is_padded_to(self, graphs, ranges):
        speeds = {1: {2: 1.5, 3: 1.9}, 2: {2: 1.6}, 3: {2: 1.4}, 4: {2: 0.9}}
        advisor = by_batch(speeds)
        assert schedule(advisor, graphs=graphs) == ranges
        assert len(schedule(advisor)) == 3

    def test_batches_below_the_smallest_covered_draft_as_it_does(self):
        speeds = {2: {2: 1.5, 3: 1.9}, 3: {2: 1.6, 3: 1.1}}
        assert schedule(by_batch(speeds)) == (Range(1, 2, 3), Range(3, 3, 2))

    @pytest.mark.parametrize(
        ("drafting", "ranges"),
        [
            ((1.5, 0.9, 0.9, 0.9), (Range(1, 1, 2), Range(2, 4, 0))),
            ((1.5, 1.5, 1.5, 1.005), (Range(1, 3, 2), Range(4, 4, 0))),
            ((0.9, 1.03, 1.2, 1.2), (Range(1, 1, 0), Range(2, 4, 2))),
        ],
    )
    def test_it_ends_where_drafting_stops_gaining(self, drafting, ranges):
        speeds = {batch: {2: v} for batch, v in enumerate(drafting, 1)}
        assert schedule(by_batch(speeds)) == ranges
        assert schedule(by_batch(speeds), falling=True) == (Range(1, 4, 2),)

    def test_a_batch_of_which_nothing_is_known_drafts_as_the_one_before(self):
        """Batches 4 and 64 share no K, so nothing lies between them."""
        rows = ((4, 0, 10), (4, 3, 12), (6, 2, 10), (6, 5, 11))
        advisor = Advisor.of(
            served_table(*rows), of_lengths({2: 2.4, 3: 2.8, 5: 3}, "")
        )
        assert schedule(advisor)[0] == Range(1, 5, 3)

    def test_a_falling_one_begins_with_its_longest(self):
        speeds = {1: {2: 1.5, 3: 1.4}, 2: {2: 0.9, 3: 1.5}, 3: {1: 1.5, 2: 1.2}}
        ranges = schedule(by_batch(speeds), falling=True)
        assert ranges == (Range(1, 2, 2), Range(3, 3, 1))

    @pytest.mark.parametrize(("last", "said"), [(4, "4"), (8, "4 to 8")])
    def test_a_range_of_one_batch_names_it_once(self, last, said):
        assert str(Range(4, last, 2)) == f"K = 2 at batch {said}"


class TestPlan:
    def test_the_gain_is_time_saved_over_the_traffic(self):
        """1.5 at a quarter of plain decoding's time, 1.2 at three: 1 / 0.7917."""
        steps = planted({1: {2: 2.4 / 1.5}, 2: {2: 2.0}})
        made = plan(Advisor(steps, LENGTHS), traffic_of("1:5,2:15"))
        assert made.traffic == {1: 0.25, 2: 0.75}
        assert made.drafts == 2
        assert made.gain.value == pytest.approx(1.0 / (0.25 / 1.5 + 0.75 / 1.2))

    def test_plain_decoding_is_advised_where_drafts_gain_nothing(self):
        made = plan(Advisor(planted({1: {2: 3.0}}), LENGTHS), {1: 1.0})
        assert (made.drafts, made.gain.value, made.advised) == (0, 1.0, ())

    @pytest.mark.parametrize(("gain", "advised"), [(1.58, 2), (1.57, 1)])
    def test_a_schedule_has_to_gain_its_cost(self, gain, advised):
        ranges = (Range(1, 4, 5), Range(5, 8, 2))
        traffic, whole = {1: 0.5, 6: 0.5}, Estimate(gain, gain, gain)
        made = DraftPlan(traffic, gained(1.5), schedule=ranges, schedule_gain=whole)
        assert len(made.advised) == advised
        if advised == 1:
            assert made.advised == (Range(1, 6, 3),)

    def test_what_ran_is_advised_and_what_may_be_better_is_named(self):
        ratios = {1: {2: 1.7, 3: 2.2}}
        steps = planted(ratios, "measured", 0.2, {2: "other K"})
        made = plan(Advisor(steps, LENGTHS), {1: 1.0})
        assert made.drafts == 3 and made.measured is None
        assert made.rival and made.rival.levels == 2

    def test_of_two_that_may_be_equal_the_better_known_is_named(self):
        """K = 1 and 2 have 1.59 and 1.60 of plain decoding, K = 3 1.3."""
        committed = dict(zip(LENGTHS.levels, LENGTHS.committed, strict=True))
        ratios = {k: committed[k] / s for k, s in ((1, 1.59), (2, 1.6), (3, 1.3))}
        others = {1: "other K", 2: "other K"}
        steps = planted({1: ratios}, "measured", 0.1, others, {1: 0.3, 2: 0.6})
        made = plan(Advisor(steps, LENGTHS), {1: 1.0})
        assert made.rival and made.rival.levels == 1

    def test_what_is_surely_faster_is_advised_beside_what_ran(self):
        ratios = {1: {2: 1.2, 3: 2.2}}
        steps = planted(ratios, "measured", 0.2, {2: "other K"})
        made = plan(Advisor(steps, LENGTHS), {1: 1.0})
        assert made.drafts == 2 and made.rival is None
        assert made.measured and made.measured.levels == 3

    def test_a_batch_of_which_nothing_is_known_is_refused(self):
        with pytest.raises(DataError, match="batch 3 is not planted"):
            plan(Advisor(planted({1: {2: 1.5}}), LENGTHS), {1: 0.5, 3: 0.5})

    def test_a_batch_without_a_draft_is_refused(self):
        steps = planted({1: {2: 1.5}, 2: {}})
        with pytest.raises(ConfigError, match="no draft is covered at batch 2"):
            plan(Advisor(steps, LENGTHS), {1: 0.5, 2: 0.5})


@pytest.mark.parametrize(
    "text", ["", "1:x", "1:0", "0:1", "1:.5,1:.5", "1:nan", "1:inf"]
)
def test_odd_traffic_is_refused(text):
    with pytest.raises(ConfigError, match="as in 1:"):
        traffic_of(text)
