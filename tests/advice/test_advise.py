"""Ways to draft are compared by the source's own steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import acceptance_of, of_lengths, of_rate
from evict_profile.advice.advise import Advisor, Gain, lead
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.growth import FAR_ERROR
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from tests.advice.served import planted, served_table

GOOD = of_lengths({1: 1.95, 2: 2.85, 3: 3.7}, "good")
ONE_RUN = math.exp(1.96 * 0.05 * math.sqrt(2.0))
"""A factor of the 95 % interval of two steps, each of one run."""


@pytest.fixture
def table(saved_table):
    """Batches 1 and 2, contexts 64 and 256, widths up to 16."""
    return CostTable.load(saved_table)


def stated(text):
    [lengths] = acceptance_of(text)
    return lengths


def way(table, accept, batch, drafts):
    ways = Advisor.of(table, stated(accept)).at(batch).ways
    return next(each for each in ways if each.levels == drafts)


class TestOfASweep:
    @pytest.mark.parametrize("batch", [1, 2])
    def test_speed_is_committed_times_cost_over_cost(self, table, batch):
        cost = table.costs(batch, 64).step_cost_us
        advice = Advisor.of(table, GOOD, level_ms=0.5).at(batch)
        for each, length in zip(advice.ways, (1.0, 1.95, 2.85, 3.7), strict=True):
            step_us = cost[batch * each.width] + 500.0 * each.levels
            assert each.ratio.value == pytest.approx(step_us / cost[batch])
            assert each.speed.value == pytest.approx(length * cost[batch] / step_us)
        assert advice.best is max(advice.ways, key=lambda each: each.speed.value)

    def test_interval_adds_acceptance_and_both_costs(self, table):
        known = replace(GOOD, half_width=GOOD.half_width + 0.1)
        cost = table.costs(1, 64)
        two = Advisor.of(table, known, level_ms=0.0).at(1).ways[2]
        halves = [
            (cost.high_us[t] - cost.low_us[t]) / 2 / cost.step_cost_us[t]
            for t in (1, 3)
        ]
        assert two.speed.high / two.speed.value == pytest.approx(
            math.exp(math.hypot(0.1, *halves))
        )

    def test_assumed_drafting_may_take_no_time_or_twice_as_long(self, table):
        cost, assumed = table.costs(1, 64), Advisor.of(table, GOOD)
        one = assumed.at(1).ways[1]
        undrafted = cost.step_cost_us[2] / cost.step_cost_us[1]
        assert one.ratio.value > undrafted
        assert one.speed.high > one.committed / undrafted

    def test_widths_beyond_the_table_are_left_out(self, table):
        ways = Advisor.of(table, of_rate(0.9), level_ms=0.0).at(2).ways
        assert max(each.width for each in ways) * 2 <= table.max_tokens(2)

    def test_batches_end_where_the_context_is_not_covered(self, table):
        own = tuple(s for s in table.staircases if (s.batch, s.context) != (2, 256))
        shorter = replace(table, staircases=own)
        assert Advisor.of(shorter, GOOD, context=64).batches == (1, 2)
        assert Advisor.of(shorter, GOOD, context=256).batches == (1,)

    def test_a_table_that_covers_no_draft_is_refused(self, table):
        wide = of_lengths({63: 40.0}, "wide")
        with pytest.raises(ConfigError, match="covers no draft at any of its batches"):
            _ = Advisor.of(table, wide).batches


class TestOfAServer:
    def test_the_measured_ratio_has_the_interval_of_its_runs(self):
        """120 tok/s plain and 150 tok/s with 2.4 accepted are steps of 8.33, 16 ms."""
        three = way(served_table((1, 0, 1e3 / 120), (1, 3, 16.0)), "3:2.4", 1, 3)
        assert three.break_even.value == pytest.approx(1.92)
        assert three.speed.value == pytest.approx(1.25)
        assert three.speed.low == pytest.approx(1.25 / ONE_RUN)
        assert three.speed.high == pytest.approx(1.25 * ONE_RUN)
        assert three.basis == "measured"

    def test_a_batch_between_has_the_ratio_of_its_neighbours(self):
        flat = served_table((4, 0, 10), (4, 3, 20), (64, 0, 10), (64, 3, 20))
        three = way(flat, "3:1.4", 8, 3)
        assert three.speed.value == pytest.approx(0.70)
        assert three.speed.high < 1.0
        assert three.basis == "other batch"

    def test_a_k_below_the_one_that_ran_may_be_slower_than_a_line(self):
        """K = 6 ran. K = 2 was predicted 1.09 by a line, and ran at 0.93."""
        two = way(served_table((1, 0, 10.0), (1, 6, 26.0)), "6:2.1", 1, 2)
        line = 1.0 + 1.6 * 2.0 / 6.0
        assert two.basis == "other K"
        assert two.ratio.low <= line < line * 1.09 / 0.93 <= two.ratio.high

    def test_no_k_is_compared_beyond_twice_the_longest_that_was_served(self):
        ways = Advisor.of(served_table((1, 0, 8.0), (1, 3, 16.0)), of_rate(0.8)).at(1)
        assert [each.levels for each in ways.ways] == [0, 1, 2, 3, 4, 5, 6]

    def test_lengths_are_compared_with_one_another_without_a_plain_run(self):
        """12 ms for 10 ms, 3.0 for 2.5 tokens: as fast."""
        served = served_table((1, 3, 10.0), (1, 5, 12.0))
        ways = Advisor.of(served, of_lengths({3: 2.5, 5: 3.0}, "")).at(1).ways
        assert [each.levels for each in ways] == [3, 5]
        assert ways[1].speed.value == pytest.approx(3.0 / 2.5 / 1.2)
        assert ways[1].break_even.value == pytest.approx(2.5 * 1.2)

    def test_no_speed_is_above_what_a_step_commits_at_most(self):
        three = way(served_table((1, 0, 10.0), (1, 3, 10.5)), "3:3.8", 1, 3)
        assert three.speed.value == pytest.approx(3.8 / 1.05)
        assert three.speed.high == 4.0

    def test_a_context_that_no_run_states_is_refused(self):
        served = served_table((1, 0, 10.0), (1, 3, 14.0))
        with pytest.raises(ConfigError, match="no run states its context"):
            Advisor.of(served, of_rate(0.8), context=8192)

    def test_plain_decoding_alone_takes_the_ratio_of_the_nearest_batch(self):
        table = served_table((1, 0, 10.0), (1, 3, 14.0), (8, 0, 16.0))
        three = way(table, "3:2.4", 8, 3)
        assert three.basis == "other batch"
        assert three.ratio.value == pytest.approx(1.4)
        assert three.step_us == pytest.approx(1.4 * 16e3)

    def test_a_ratio_is_less_known_the_further_its_batch_is(self):
        rows = (1, 0, 10.0), (1, 3, 14.0), (2, 0, 11.0), (8, 0, 16.0)
        near, far = (way(served_table(*rows), "3:2.4", b, 3).ratio for b in (2, 8))
        for ratio, factor in ((near, 2), (far, 8)):
            assert ratio.high > 1.4 * math.exp(FAR_ERROR * math.sqrt(math.log(factor)))

    def test_plain_decoding_alone_between_two_batches_gives_its_own_time(self):
        rows = ((1, 0, 10.0), (1, 3, 20.0), (8, 0, 13.0), (64, 0, 30.0), (64, 3, 60.0))
        three = way(served_table(*rows), "3:2.4", 8, 3)
        assert three.basis == "other batch"
        assert three.step_us == pytest.approx(26e3)

    def test_a_length_of_the_reference_has_to_be_stated(self):
        served = served_table((1, 3, 10.0), (1, 5, 12.0))
        with pytest.raises(ConfigError, match="no length of K = 3"):
            Advisor.of(served, of_lengths({5: 3.0}, "")).at(1)


@pytest.mark.parametrize(("text", "last"), [("1:1.9", 2), ("3:2.99", 6), ("0.7", 16)])
def test_no_k_is_compared_beyond_twice_the_longest_that_is_stated(text, last):
    steps = planted({1: dict.fromkeys(range(1, 17), 1.0)})
    assert Advisor(steps, stated(text)).at(1).ways[-1].levels == last


def test_a_context_without_a_table_is_refused():
    with pytest.raises(ConfigError, match="steps of other servers are of no one"):
        Advisor.of(None, of_rate(0.7), context=4096)


class TestLead:
    def gain(self, drafts, value, low=None, basis="measured"):
        return Gain(drafts, Estimate(value, low or 0.9 * value, 1.1 * value), basis)

    def test_what_ran_is_preferred(self):
        ran = self.gain(3, 1.25)
        assert lead([ran, self.gain(2, 1.32, basis="other K")]) == ran

    def test_unless_another_is_surely_faster(self):
        other = self.gain(2, 1.6, low=1.3, basis="other K")
        assert lead([self.gain(3, 1.25), other]) == other

    @given(st.lists(st.floats(0.2, 4.0), min_size=1, max_size=6))
    def test_of_those_that_ran_it_is_the_fastest(self, speeds):
        found = lead([self.gain(k, speed) for k, speed in enumerate(speeds, 1)])
        assert found.speed.value == max(speeds)

    @pytest.mark.parametrize(
        ("value", "low", "high", "verdict"),
        [
            (1.25, 1.09, 1.44, "pays"),
            (0.22, 0.16, 0.32, "does not pay"),
            (1.005, 1.002, 1.02, "not settled"),
            (1.0, 0.99, 1.005, "does not pay"),
            (1.2, 0.63, 2.47, "not settled"),
            (0.9, 0.7, 1.1, "not settled"),
        ],
    )
    def test_a_verdict_is_certain_where_the_interval_excludes_one(
        self, value, low, high, verdict
    ):
        assert Gain(3, Estimate(value, low, high), "measured").verdict == verdict


@pytest.mark.parametrize(("gain", "drafts"), [(1.005, 0), (1.02, 1)])
def test_less_than_one_per_cent_is_not_worth_it(gain, drafts):
    lengths = of_lengths({1: 1.2 * gain}, "")
    assert Advisor(planted({1: {1: 1.2}}), lengths).at(1).best.levels == drafts
