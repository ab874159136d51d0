"""Prices of recorded steps, and what they had to assume."""

import numpy as np
import pytest

from evict_profile.budgets.load import BudgetRecord
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.schema import MASS
from evict_profile.records import replace
from evict_profile.table import CostTable, DraftClock, Drafting
from tests.budgets.synthetic import BESIDE_US


def test_the_table_clocks_of_drafting_come_first(
    recording: BudgetRecord, table: CostTable
) -> None:
    """The recording's serve where it has none; where nobody has, it is said."""
    clocked = replace(
        table, drafting=Drafting("none", "a test", (DraftClock(1, (0, 1, 2, 3), 4, 5),))
    )
    assert Prices(clocked, recording).beside_us == 7.0
    assert Prices(table, recording).beside_us == BESIDE_US
    unclocked = replace(recording, metadata=replace(recording.metadata, clocks=()))
    free = Prices(table, unclocked)
    assert free.beside_us == 0.0
    assert "drafting and the host are free: nobody has clocked them" in free.caveats


def test_levels_deeper_than_clocked_take_as_long_as_the_last(
    recording: BudgetRecord, table: CostTable
) -> None:
    """Also where only one moment is known."""
    for known, us in (((0.0, 10.0), 30.0), ((0.0, 10.0, 15.0), 20.0), ((0.0,), 0.0)):
        shallow = replace(
            table,
            drafting=Drafting("none", "a test", (DraftClock(1, known, 0.0, 0.0),)),
        )
        assert Prices(shallow, recording).beside_us == us


def test_forwards_cost_what_the_fit_says(
    recording: BudgetRecord, prices: Prices, table: CostTable
) -> None:
    """At each step's own context."""
    steps = recording.steps.take(np.arange(len(recording.steps.kl)) < 3)
    us = prices.verify_us(steps, steps.union)
    for place in range(3):
        row = slice(place, place + 1)
        tokens = steps.verified[row].astype(float)
        one = table.cost.price(
            tokens, steps.union[row], float(steps.context[place]), 1.0
        )
        assert us[place] == pytest.approx(one[0])


def test_verification_is_padded_to_the_ladder(
    recording: BudgetRecord, table: CostTable
) -> None:
    """What runs is a whole rung."""
    steps = recording.steps
    laddered = Prices(
        replace(table, axes=replace(table.axes, ladder=(4, 16))), recording
    )
    wider = replace(steps, verified=np.full_like(steps.verified, 16))
    assert laddered.verify_us(steps, steps.union) == pytest.approx(
        Prices(table, recording).verify_us(wider, steps.union)
    )


def test_routing_is_charged_by_the_share_of_the_tree(
    recording: BudgetRecord, prices: Prices
) -> None:
    """Half a tree is routed in half the time."""
    rules = np.array([each.rule for each in recording.settings])
    mass = recording.steps.take(rules[recording.steps.setting] == MASS)
    half = replace(mass, verified=mass.verified // 2)
    nothing = np.zeros(len(mass.kl))
    assert np.all(prices.step_us(mass, nothing) == BESIDE_US + 20.0)
    assert np.all(prices.step_us(half, nothing) == BESIDE_US + 10.0)


def test_what_is_outside_the_table_is_told(
    recording: BudgetRecord, table: CostTable
) -> None:
    """And a context is priced at its edge."""
    steps = recording.steps
    far, farther = (
        replace(recording, steps=replace(steps, context=steps.context + more))
        for more in (5000, 6000)
    )
    prices = Prices(table, far)
    assert any(mark.startswith("context 5064..") for mark in prices.caveats)
    assert np.all(
        prices.verify_us(far.steps, steps.union)
        == prices.verify_us(farther.steps, steps.union)
    )


def test_a_recorders_times_are_brought_to_the_tables_speed(
    recording: BudgetRecord, table: CostTable
) -> None:
    """Its machine was slower: routing and clocks count half, forwards as ever."""
    slow, same = (Prices(table, recording, speed) for speed in (0.5, 1.0))
    steps = recording.steps
    verify_us = same.verify_us(steps, steps.union)
    assert (slow.verify_us(steps, steps.union) == verify_us).all()
    assert slow.beside_us == BESIDE_US / 2.0
    beside = [p.step_us(steps, verify_us) - verify_us for p in (slow, same)]
    assert beside[0] == pytest.approx(beside[1] / 2.0)
