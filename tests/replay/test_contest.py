"""A cell: everyone is there, and baselines are as strong as they can be."""

from dataclasses import replace

import pytest

from evict_profile.replay.cell import BASELINES, MIXED, Cell, Place
from evict_profile.replay.contest import Contest, parts
from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    GUIDED,
    ORACLE,
    PAIR_LINKS,
    SERVED_TREE,
    THRESHOLD,
    Fixed,
)
from evict_profile.runtime import CostTable
from evict_profile.traces import Trace
from tests.traces.synthetic import ABOUT, Plan, make_trace


@pytest.fixture(scope="module", params=[1, 3])
def contest(
    request: pytest.FixtureRequest, ground: Ground, table: CostTable
) -> Contest:
    """Two orders of all replies."""
    return Contest(ground, table, Place(MIXED, 0.0, request.param), seeds=2)


@pytest.fixture(scope="module")
def cell(contest: Contest) -> Cell:
    """Decided once."""
    return contest.cell()


def test_everyone_stands_in_a_cell(cell: Cell) -> None:
    """Baselines first, the oracle last."""
    names = [each.policy for each in cell.standings]
    first = [AR, FULL_TREE, BEST_WIDTH, BEST_PAIR, THRESHOLD, PAIR_LINKS]
    assert names == [*first, *GUIDED, ORACLE]


def test_the_tree_that_engines_ship_with_stands_beside_larger_ones(
    table: CostTable,
) -> None:
    """Where trees hold 32 tokens and more."""
    large = make_trace(Plan(prompts=2, tokens=4, about=replace(ABOUT, nodes=40)))
    found = Contest(Ground(large), table, Place(MIXED, 0.0, 1), seeds=1).cell()
    assert found.of(SERVED_TREE).verified.value == 32.0


def test_no_fixed_tree_beats_the_best_pair(contest: Contest, cell: Cell) -> None:
    """Of all widths and depths, to within what skipping some widths can miss."""
    best = max(
        contest.walk(Fixed("", depth, width), seed=0).tokens_per_s
        for depth in (1, 2, 3, 4)
        for width in range(2, 26)
    )
    assert cell.best.tokens_per_s >= 0.99 * best
    deepest = [point for point in cell.widths if point.depth == 4]
    assert cell.best_width == max(deepest, key=lambda point: point.tokens_per_s)


def test_ratios_are_those_of_the_throughputs(cell: Cell) -> None:
    """Of each policy over each baseline; over oneself it is one, for sure."""
    for each in cell.standings:
        for name in BASELINES:
            ratio = each.tokens_per_s.value / cell.of(name).tokens_per_s.value
            assert each.over[name].value == pytest.approx(ratio)
    own = cell.of(BEST_PAIR).over[BEST_PAIR]
    assert (own.low, own.value, own.high) == (1.0, 1.0, 1.0)


def test_a_step_is_the_sum_of_its_parts(cell: Cell) -> None:
    """Verification, drafting and the rest."""
    for each in cell.standings:
        parts_us = (each.verify_us, each.draft_us, each.fixed_us)
        assert sum(part.value for part in parts_us) == pytest.approx(each.step_us.value)
        assert each.verified.low <= each.verified.value <= each.verified.high


def test_plain_decoding_commits_a_token_a_step(cell: Cell) -> None:
    """And verifies nothing but it."""
    plain = cell.of(AR)
    assert (plain.committed.value, plain.verified.value) == (1.0, 1.0)
    assert (plain.depth.value, plain.draft_us.value) == (0.0, 0.0)


def test_parts_are_workloads_and_their_mix(trace: Trace) -> None:
    """At each temperature; one workload alone has no mix."""
    assert [part[1:] for part in parts(trace)] == [
        ("code", 0.0),
        ("prose", 0.0),
        (MIXED, 0.0),
    ]
    one = make_trace(
        Plan(prompts=2, tokens=4, workloads=("code",), temperatures=(0.0, 1.0))
    )
    assert [part[1:] for part in parts(one)] == [("code", 0.0), ("code", 1.0)]


def test_an_order_changes_nothing_for_one_that_learns_nothing(
    ground: Ground, table: CostTable
) -> None:
    """Alone in its batch; so it is walked once for all seeds."""
    contest = Contest(ground, table, Place(MIXED, 0.0, 1), seeds=2)
    runs = [contest.walk(Fixed("", 2, 6), seed) for seed in range(2)]
    assert runs[0].tokens_per_s == pytest.approx(runs[1].tokens_per_s, rel=1e-12)
