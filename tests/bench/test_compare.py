"""The comparison as a whole: paired, repeatable, and in the order that theory asks."""

import json
import re
from statistics import mean
from typing import Any

import numpy as np
import pytest

from evict_profile.bench.compare import (
    BASELINES,
    FEWEST_STEPS,
    TREE_NODES,
    compare_shapes,
)
from evict_profile.bench.contest import (
    BEST_FIXED,
    FULL_TREE,
    ORACLE,
    RATE_AT_OPTIMUM,
    Contest,
)
from evict_profile.bench.interval import student_interval, student_quantile
from evict_profile.bench.mixes import MIXES, Mix
from evict_profile.bench.render import SHOWN, markdown, summary
from evict_profile.bench.shapes import cost_shapes
from evict_profile.errors import ConfigError

SEEDS, STEPS = 2, 320


@pytest.fixture(scope="module")
def comparison() -> dict[str, Any]:
    """A small run of everything."""
    return compare_shapes(SEEDS, STEPS, None)


def test_a_comparison_is_json_and_seeds_make_it_repeatable(
    comparison: dict[str, Any],
) -> None:
    """The same seeds give the same bytes."""
    again = compare_shapes(SEEDS, STEPS, None)
    assert json.dumps(again) == json.dumps(comparison)


def test_each_place_has_each_policy_once(comparison: dict[str, Any]) -> None:
    """Mixes x tree sizes x shapes x policies, each against every baseline."""
    rows = comparison["rows"]
    names = [(r["mix"], r["shape"], r["nodes"], r["policy"]) for r in rows]
    policies = {row["policy"] for row in rows}
    places = len(MIXES) * len(TREE_NODES) * len(cost_shapes())
    assert len(set(names)) == len(names) == places * len(policies)
    assert all(set(row["over"]) == set(BASELINES) for row in rows)


def test_bounds_hold_everywhere(comparison: dict[str, Any]) -> None:
    """Nothing but the oracle beats the optimum; the oracle is never beaten."""
    for row in comparison["rows"]:
        over = row["over"][RATE_AT_OPTIMUM]["mean"]
        if row["policy"] == ORACLE:
            assert over >= 1.0 - 1e-12
        elif row["policy"] != "AR":
            assert over <= 1.0 + 1e-12


def test_on_a_flat_cost_everything_verifies_the_full_tree(
    comparison: dict[str, Any],
) -> None:
    """Nodes are free, so no rule that drafts gains or loses."""
    flat = [r for r in comparison["rows"] if r["shape"] == "flat"]
    for row in flat:
        if row["policy"] not in ("AR", ORACLE):
            assert row["width"] == pytest.approx(row["nodes"] + 1)
            assert row["over"][BEST_FIXED]["mean"] == pytest.approx(1.0)


def test_progress_names_each_mix() -> None:
    """One line a mix, before it runs."""
    lines: list[str] = []
    compare_shapes(SEEDS, STEPS, lines.append)
    assert [line.split(":")[0] for line in lines] == [mix.name for mix in MIXES]


def test_markdown_has_a_line_for_each_place(comparison: dict[str, Any]) -> None:
    """A heading, a rule, and each mix at each shape, all with equal columns."""
    lines = markdown(comparison, nodes=31).splitlines()
    assert len(lines) == 2 + len(MIXES) * len(cost_shapes())
    assert {line.count("|") for line in lines} == {len(SHOWN) + 5}


def test_the_summary_has_a_line_for_each_mix(comparison: dict[str, Any]) -> None:
    """Its mean lies between its least and its most."""
    lines = summary(comparison, nodes=31).splitlines()
    assert len(lines) == 2 + len(MIXES)
    for cell in re.findall(r"([\d.]+) \(([\d.]+)\.\.([\d.]+)\)", "".join(lines)):
        mid, low, high = map(float, cell)
        assert low <= mid <= high


def test_the_best_fixed_width_is_the_best_of_all_widths() -> None:
    """In hindsight, over both kinds of text."""
    for shape in cost_shapes():
        contest = Contest(MIXES[3].draw(0, STEPS), shape)
        widths = range(1, len(contest.cost_us))
        best = contest.scores()[BEST_FIXED]
        assert best.us_per_token == min(contest.fixed(w).us_per_token for w in widths)


def test_a_workload_is_timed_by_tokens_and_not_by_steps() -> None:
    """Two kinds of equal tokens: time per token is the mean of their times."""
    contest = Contest(Mix("both", (1.0, 0.0)).draw(0, STEPS), cost_shapes()[1])
    easy, hard = contest.workload.phases
    us = contest.cost_us[-1]
    each = [us / phase.true_benefit[:, -1].mean() for phase in (easy, hard)]
    score = contest.scores()[FULL_TREE]
    assert score.us_per_token == pytest.approx(mean(each))
    assert score.tokens_per_step == pytest.approx(us / score.us_per_token)


def test_stretches_alternate_and_widths_find_their_way_back() -> None:
    """Kind 0 for two steps, kind 1 for three; by_phase undoes the order."""
    workload = Mix("short", (1.0, 0.0), stretch_steps=(2, 3)).draw(0, 13)
    assert list(workload.order) == [0, 1, 4, 5, 6, 2, 3, 7, 8, 9]
    first, second = workload.by_phase(workload.order)
    assert [list(first), list(second)] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert np.array_equal(workload.benefit[2], workload.phases[1].benefit[0])


@pytest.mark.parametrize(("freedom", "quantile"), [(9, 2.2622), (19, 2.0930)])
def test_student_quantiles_match_the_tables(freedom: int, quantile: float) -> None:
    """Within 0.1 %."""
    assert student_quantile(freedom) == pytest.approx(quantile, rel=1e-3)


@pytest.mark.parametrize(("seeds", "steps"), [(1, 320), (2, FEWEST_STEPS - 1)])
def test_too_little_to_compare_is_refused(seeds: int, steps: int) -> None:
    """One seed has no interval; a short run holds no stretch of each kind."""
    with pytest.raises(ConfigError, match="too few"):
        compare_shapes(seeds, steps, None)


def test_an_interval_needs_two_simulations() -> None:
    """One has no spread, and says so."""
    with pytest.raises(ValueError, match="two simulations"):
        student_interval([1.0])
