"""The front of synthetic recordings, against numbers worked out by hand."""

import numpy as np
import pytest

from evict_profile.budgets.frontier import front_of, fronts_of
from evict_profile.budgets.load import record_of
from evict_profile.budgets.prices import RecordPrices
from evict_profile.budgets.schema import MASS, NONE, ORACLE, STATIC
from evict_profile.replay.compare import MIXED
from tests.budgets.synthetic import BESIDE_US, both, rows, setting, table_of
from tests.factories import EXPERT_US

NO_BUDGET, BUDGET = setting(NONE), setting(MASS, 8, routing_us=80.0)


def priced(found, settings, table):
    """The front of all workloads."""
    recording = record_of(table_of(found, settings), "synthetic")
    return front_of(recording, RecordPrices(table, recording))


@pytest.fixture
def two_prompts(table):
    """One prompt is as without a budget; the other takes one step more."""
    found = both(NO_BUDGET, 0, committed=(4, 4)) + both(NO_BUDGET, 1, committed=(4, 4))
    found += both(BUDGET, 0, committed=(4, 4), kl=0.01)
    found += rows(BUDGET, 1, committed=(4, 2, 2), kl=0.5)
    found += rows(
        BUDGET, 1, True, committed=(4, 4), kl=0.03, agrees=(True, False), excess=0.25
    )
    return priced(found, [NO_BUDGET, BUDGET], table)


def test_speed_is_all_tokens_over_all_time(two_prompts, table):
    """Verification of what ran, drafting and the rest, and routing by its share."""
    eight = np.array([8.0])
    verify_us = {
        union: table.cost.price(eight, np.array([union]), 64.0, 1.0)[0]
        for union in (8.0, 24.0)
    }
    none, mass = two_prompts.points
    plain = 16e6 / (4 * (verify_us[24.0] + BESIDE_US))
    budgeted = 16e6 / (5 * (verify_us[8.0] + BESIDE_US + 80.0))
    # Contexts are a few tokens longer than the one priced here.
    assert none.tokens_per_s.value == pytest.approx(plain, rel=1e-3)
    assert mass.tokens_per_s.value == pytest.approx(budgeted, rel=1e-3)
    assert mass.speedup.value == pytest.approx(budgeted / plain, rel=1e-3)
    assert none.speedup.value == 1.0


def test_steps_are_means_of_decoded_text(two_prompts):
    """Five steps against four commit the same."""
    none, mass = two_prompts.points
    assert (none.committed.value, mass.committed.value) == pytest.approx((4.0, 3.2))
    assert mass.accept_ratio.value == pytest.approx(0.8)
    assert mass.speedup.value == pytest.approx(
        mass.accept_ratio.value / mass.step_ratio.value
    )
    assert (none.union.value, mass.union.value) == (24.0, 8.0)


def test_tokens_beyond_those_without_a_budget_are_not_earned(table):
    """The text is another; time a step is what a budget can spare."""
    found = both(NO_BUDGET, committed=(2, 2)) + both(BUDGET, committed=(4,))
    mass = priced(found, [NO_BUDGET, BUDGET], table).of(MASS)[0]
    assert mass.accept_ratio.value == 2.0
    assert mass.earned.value == pytest.approx(1.0 / mass.step_ratio.value)
    assert mass.speedup.value == pytest.approx(2.0 * mass.earned.value)


def test_quality_is_a_mean_over_tokens_of_either_text(two_prompts):
    """Given text is forced, decoded text its own."""
    none, mass = two_prompts.points
    assert mass.given.kl.value == pytest.approx(0.02)
    assert mass.decoded.kl.value == pytest.approx(0.255)
    assert mass.given.agreement.value == pytest.approx(0.75)
    assert mass.given.excess_loss.value == pytest.approx(0.125)
    assert mass.over_none.value == pytest.approx(0.125)
    assert none.given.kl.value == none.given.excess_loss.value == 0.0


def test_rounding_without_a_budget_is_taken_off(table):
    """`none` against its own clean forward is a check; what is left is the budget's."""
    found = both(NO_BUDGET, excess=0.125) + both(BUDGET, excess=0.5)
    none, mass = priced(found, [NO_BUDGET, BUDGET], table).points
    assert none.given.excess_loss.value == 0.125
    assert none.over_none.value == 0.0
    assert (mass.given.excess_loss.value, mass.over_none.value) == (0.5, 0.375)


def test_a_price_is_predicted_from_unbudgeted_steps(two_prompts, table):
    """What ran activated as many as the budget allows: the prediction is exact."""
    none, mass = two_prompts.points
    assert mass.predicted_us.value == pytest.approx(mass.verify_us.value, rel=1e-3)
    assert none.predicted_us.value == pytest.approx(none.verify_us.value)
    spared = none.verify_us.value - mass.verify_us.value
    assert spared == pytest.approx(4 * 16 * EXPERT_US, rel=0.05)


def test_a_budget_that_activates_fewer_is_predicted_too_dear(table):
    """Truncation drops experts that were allowed."""
    found = both(NO_BUDGET) + both(BUDGET, union=6.0)
    mass = priced(found, [NO_BUDGET, BUDGET], table).of(MASS)[0]
    assert mass.predicted_us.value > mass.verify_us.value


def test_comparisons_with_none_are_paired(recording, prices):
    """Prompts differ in length, and steps of all prompts are alike."""
    front = front_of(recording, prices)
    mass = front.of(MASS)[-1]
    assert mass.accept_ratio.low == pytest.approx(1.0)
    assert mass.accept_ratio.high == pytest.approx(1.0)


def test_all_workloads_come_first_and_then_each(recording, prices):
    """One alone has no mix."""
    found = fronts_of(recording, prices)
    assert [each.workload for each in found] == [MIXED, "code", "prose"]
    assert [each.prompts for each in found] == [12, 6, 6]
    assert found[0].tokens == found[1].tokens + found[2].tokens
    alone = recording.only(["prose"])
    assert [each.workload for each in fronts_of(alone, prices)] == ["prose"]


def test_points_of_a_rule_stand_by_budget(table):
    """Whatever the order of the settings."""
    settings = [setting(STATIC, 16), NO_BUDGET, setting(STATIC, 8)]
    found = [row for each in settings for row in both(each)]
    front = priced(found, settings, table)
    assert [point.setting.budget for point in front.of(STATIC)] == [8, 16]
    assert front.none.setting == NO_BUDGET


def test_the_pareto_front_holds_what_nothing_beats(table):
    """A larger budget that diverges more is slower and worse; the oracle is apart."""
    kl = {NO_BUDGET: 0.0, setting(MASS, 8): 0.1, setting(MASS, 16): 0.2}
    kl |= {setting(STATIC, 24): 0.05, setting(ORACLE, 8): 0.0}
    found = [row for each in kl for row in both(each, kl=kl[each])]
    assert priced(found, list(kl), table).pareto == ("mass 8", "static 24")
