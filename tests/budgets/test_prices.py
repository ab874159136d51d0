"""Prices of recorded steps, and what they had to assume."""

from dataclasses import replace

import numpy as np
import pytest

from evict_profile.budgets.prices import RecordPrices
from evict_profile.budgets.schema import MASS
from evict_profile.records import replace as changed
from evict_profile.table import DraftClock, Drafting
from tests.budgets.synthetic import BESIDE_US


def clocked(table, clock):
    return changed(table, drafting=Drafting("none", "a test", (clock,)))


def test_the_tables_clocks_of_drafting_come_first(recording, table):
    """The recording's serve where it has none; where nobody has, it is said."""
    own = clocked(table, DraftClock(1, (0, 1, 2, 3), 4, 5))
    assert RecordPrices(own, recording).beside_us == 7.0
    assert RecordPrices(table, recording).beside_us == BESIDE_US
    unclocked = replace(recording, clocks=())
    free = RecordPrices(table, unclocked)
    assert free.beside_us == 0.0
    assert "drafting and the host are free: nobody has clocked them" in free.caveats


def test_forwards_cost_what_the_fit_says_at_each_steps_context(
    recording, prices, table
):
    steps = recording.steps.head(3)
    us = prices.verify_us(steps, steps["union"].to_numpy())
    for i, step in enumerate(steps.itertuples()):
        tokens, union = np.array([float(step.verified)]), np.array([step.union])
        one = table.cost.price(tokens, union, float(step.context), 1.0)
        assert us[i] == pytest.approx(one[0])


def test_verification_is_padded_to_the_ladder(recording, table):
    laddered = changed(table, axes=changed(table.axes, ladder=(4, 16)))
    steps, union = recording.steps, recording.steps["union"].to_numpy()
    wider = steps.assign(verified=16)
    assert RecordPrices(laddered, recording).verify_us(steps, union) == pytest.approx(
        RecordPrices(table, recording).verify_us(wider, union)
    )


def test_routing_is_charged_by_the_share_of_the_tree(recording, prices):
    """Half a tree is routed in half the time."""
    setting = [each.rule for each in recording.settings].index(MASS)
    mass = recording.steps[recording.steps["setting"] == setting]
    half = mass.assign(verified=mass["verified"] // 2)
    nothing = np.zeros(len(mass))
    assert np.all(prices.step_us(mass, nothing) == BESIDE_US + 20.0)
    assert np.all(prices.step_us(half, nothing) == BESIDE_US + 10.0)


def test_a_context_outside_the_table_is_told_and_priced_at_its_edge(recording, table):
    steps, union = recording.steps, recording.steps["union"].to_numpy()
    far, farther = (
        replace(recording, steps=steps.assign(context=steps["context"] + more))
        for more in (5000, 6000)
    )
    prices = RecordPrices(table, far)
    assert any(caveat.startswith("context 5064..") for caveat in prices.caveats)
    at_the_edge = prices.verify_us(far.steps, union)
    assert np.all(at_the_edge == prices.verify_us(farther.steps, union))


def test_a_recorders_times_are_brought_to_the_tables_speed(recording, table):
    """Its machine took twice as long: routing and clocks count half, forwards all."""
    engine = recording.about.engine
    quick = changed(
        table,
        key=changed(table.key, engine=engine),
        provenance=changed(table.provenance, reference_us=100.0),
    )
    about = changed(recording.about, reference_us=200.0)
    told = replace(recording, about=about)
    slow, same = RecordPrices(quick, told), RecordPrices(table, recording)
    steps, union = recording.steps, recording.steps["union"].to_numpy()
    verify_us = same.verify_us(steps, union)
    assert (slow.verify_us(steps, union) == verify_us).all()
    assert slow.beside_us == BESIDE_US / 2.0
    added = [prices.step_us(steps, verify_us) - verify_us for prices in (slow, same)]
    assert added[0] == pytest.approx(added[1] / 2.0)
