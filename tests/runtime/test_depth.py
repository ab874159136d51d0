"""A level is drafted while what it is expected to bring pays for its time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import (
    ACCEPTANCES,
    DRAFTS,
    Combination,
    classify,
)
from evict_profile.records import replace
from evict_profile.runtime import (
    Calibration,
    ConditionalAcceptance,
    CostTable,
    Truncator,
)
from evict_profile.runtime.decision import Rule, Terms
from evict_profile.runtime.depth import DraftStep, expected_children
from evict_profile.table import DraftClock

EAGLE = {"drafts": "topk", "acceptance": "target-only"}
CHAIN = (0.5,)


def clock(*draft_us: float) -> DraftClock:
    """Nothing but drafting takes time beside verification."""
    return DraftClock(1, (0.0, *draft_us), 0.0, 0.0)


def step(draft: DraftClock, per_rank=CHAIN, **terms: float) -> DraftStep:
    """A node more costs 1 us, and the root 9."""
    costs = 9.0 + np.arange(20.0)
    return DraftStep(costs, Rule(), Terms(**terms), per_rank, draft)


def test_one_level_by_hand() -> None:
    """A sure node now: 2 tokens in 20 us; with a half of one more 2.5 in 21 + x."""
    worth, depth = np.array([[1.0]]), np.array([[1]])
    for level_us, pays in ((3.9, True), (4.1, False)):
        draft = clock(10.0, 10.0 + level_us)
        assert step(draft).pays_deeper(worth, depth) is pays


def test_a_tie_stops() -> None:
    """What brings nothing more is not drafted."""
    draft = clock(10.0, 14.0)
    assert not step(draft).pays_deeper(np.array([[1.0]]), np.array([[1]]))


@pytest.mark.parametrize("level", [2, 5])
def test_no_level_is_drafted_after_the_last(level: int) -> None:
    """Nobody has clocked a deeper one, however cheap the others were."""
    free = clock(1.0, 1.0)
    assert not step(free).pays_deeper(np.array([[1.0]]), np.array([[level]]))


def test_a_past_that_earns_more_drafts_less() -> None:
    """Time is worth what it brought."""
    worth, depth = np.array([[1.0]]), np.array([[1]])
    draft = clock(10.0, 12.0)
    assert step(draft).pays_deeper(worth, depth)
    assert not step(draft, tokens=100.0, us=100.0).pays_deeper(worth, depth)


def test_children_are_those_of_the_best_of_each_request() -> None:
    """As many parents as a node has children; padding has none."""
    frontier = np.array([[0.5, 0.0, 1.0, 0.25], [0.5, 0.0, 0.0, 0.0]])
    made = expected_children(frontier, (0.5, 0.25))
    assert sorted(made[0].tolist()) == [0.125, 0.25, 0.25, 0.5]
    assert sorted(made[1].tolist()) == [0.0, 0.0, 0.125, 0.25]


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    st.lists(st.floats(0.1, 20.0), min_size=8, max_size=8),
    st.floats(0.0, 20.0),
)
def test_it_is_the_best_of_both_trees(worth, rises, level_us) -> None:
    """Against every width, as plainly as can be written."""
    own = DraftStep(
        np.cumsum([9.0, *rises]),
        Rule(),
        Terms(),
        (0.5, 0.25),
        clock(5.0, 5.0 + level_us),
    )
    nodes = np.array([worth])
    depth = np.ones_like(nodes, dtype=np.int64)
    fan = sorted(worth, reverse=True)[:2]
    more = [*worth, *(share * parent for share in (0.5, 0.25) for parent in fan)]

    def best(values: list[float], us: float) -> float:
        gains = 1.0 + np.cumsum([0.0, *sorted(values, reverse=True)])
        sizes = min(len(gains), len(own.costs))
        return float((gains[:sizes] / (us + own.costs[:sizes])).max())

    gained = best(more, 5.0 + level_us) - best(worth, 5.0)
    if abs(gained) > 1e-9:
        assert own.pays_deeper(nodes, depth) == (gained > 0.0)


@pytest.fixture
def table(workload_table: Path) -> CostTable:
    """With acceptance, and drafting of three levels."""
    return CostTable.load(workload_table)


def test_sure_steps_are_drafted_deeper(table: CostTable) -> None:
    """And hopeless ones not."""
    truncator = Truncator(table, **EAGLE)
    depth = torch.ones(1, 4, dtype=torch.int64)
    sure, hopeless = torch.ones(1, 4), torch.full((1, 4), 1e-6)
    assert truncator.deeper(sure, depth, context=64)
    assert not truncator.deeper(hopeless, depth, context=64)
    assert not truncator.deeper(sure, 3 * depth, context=64)


def test_before_the_first_level_the_past_decides(table: CostTable) -> None:
    """Nothing is known of the step; the first of all is drafted."""
    none = torch.zeros(1, 0)
    assert Truncator(table, **EAGLE).deeper(none, none.long(), context=64)


def test_parents_are_worth_what_their_links_say(table: CostTable) -> None:
    """A level below them is drafted for what they are worth by those."""
    tree, depth = torch.ones(1, 4), torch.ones(1, 4, dtype=torch.int64)
    for chance, pays in ((1.0, True), (1e-6, False)):
        links = ConditionalAcceptance((0.0, 1.0), ((0.0, chance),))
        own = Calibration.of(replace(table.acceptance, conditional=links))
        truncator = Truncator(table, calibration=own, **EAGLE)
        assert truncator.deeper(tree, depth, 64, parent=depth - 2) is pays
        assert truncator.deeper(tree, depth, 64)


def test_another_batch_and_uniform_widths_are_decided_too(table: CostTable) -> None:
    """With the clock of the nearest batch."""
    truncator = Truncator(table, allocation="uniform", **EAGLE)
    depth = torch.ones(2, 4, dtype=torch.int64)
    assert truncator.deeper(torch.ones(2, 4), depth, context=64)


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"drafting": None}, "no time of drafting"),
        ({"acceptance": None}, "no acceptance per rank"),
        ({"acceptance": Calibration((0.0, 1.0), (0.0, 1.0))}, "no acceptance per rank"),
    ],
)
def test_what_was_not_measured_is_named(table: CostTable, lacks, says) -> None:
    """With the command that measures it."""
    truncator = Truncator(replace(table, **lacks), **EAGLE)
    one = torch.ones(1, 1)
    with pytest.raises(PlanError, match=f"{says}.*evict-profile calibrate"):
        truncator.deeper(one, one.long(), context=64)


def test_it_is_lossless_wherever_a_truncator_can_be_made() -> None:
    """Drafting by own scores reads less than cutting by them."""
    for drafts in DRAFTS:
        for acceptance in ACCEPTANCES:
            cut, depth = (
                classify(Combination(drafts, acceptance, rule, "own"))
                for rule in ("ratio", "depth")
            )
            assert depth.lossless or not cut.lossless
