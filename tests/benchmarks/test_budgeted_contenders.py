"""Budgets are read from words, and every way to truncate is lined up under each."""

from pathlib import Path

import pytest

from benchmarks.budgeted_contenders import Allowance, Capped, allowances, line_up
from benchmarks.trace_driven import as_runtime
from evict_profile.errors import ConfigError
from evict_profile.replay.cell import MIXED, Place
from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    DEPTH_LINKS,
    FULL_TREE,
    PAIR_LINKS,
)
from evict_profile.runtime import CostTable as RuntimeTable
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from runners.protocol import Refusal
from runners.tree_decoding.budgets import Budget
from runners.tree_decoding.session import TraceSession

CUTS = [FULL_TREE, BEST_PAIR, PAIR_LINKS, DEPTH_LINKS]
PLACE = Place(MIXED, 0.0, 1)


@pytest.mark.parametrize(
    ("words", "budget"),
    [
        ("mass 4", Budget((4, 4, 4))),
        ("truncation 3", Budget((3, 3, 3), "truncation")),
        ("path 4", Budget((4, 4, 4), exponent=1.0)),
        ("top-k 4", Budget((4, 4, 4), ranking="top-k")),
        ("sqrt-path+top-k 4", Budget((4, 4, 4), ranking="top-k", exponent=0.5)),
    ],
)
def test_a_budget_is_a_rule_and_a_number(
    random_session: TraceSession, words: str, budget: Budget
) -> None:
    """As recordings have the rules; none is always there."""
    none, found = allowances([words, words], random_session)
    assert none == Allowance("none", 8)
    assert found == Allowance(words, budget.per_layer[0], budget)


@pytest.mark.parametrize("words", ["mass", "mass 4.5", "16", "layers 4", "static 4"])
def test_other_words_are_refused(random_session: TraceSession, words: str) -> None:
    """Rules that would have to learn first among them."""
    with pytest.raises(ConfigError, match="need no learning"):
        allowances([words], random_session)


@pytest.mark.parametrize("words", ["mass 8", "top-k 9"])
def test_a_budget_of_all_experts_is_refused(
    random_session: TraceSession, words: str
) -> None:
    """It would be no budget."""
    with pytest.raises(ConfigError, match="a layer has 8 experts"):
        allowances([words], random_session)


def test_a_budget_that_no_layer_can_keep_is_refused(
    random_session: TraceSession,
) -> None:
    """Fewer experts than one token runs."""
    with pytest.raises(Refusal, match="cannot be kept"):
        allowances(["mass 1"], random_session)


def test_unions_are_capped(short_trace: Trace) -> None:
    """Where they would be larger, and there alone."""
    whole, capped = Ground(short_trace), Capped(short_trace, 4)
    for places in (whole.root[:1], whole.root):
        assert capped.union(places) == min(whole.union(places), 4.0)
    assert whole.union(whole.root) > 4.0


def test_everything_is_lined_up(short_trace: Trace, informed_table: CostTable) -> None:
    """Plain decoding once, all others under each budget; names tell them apart."""
    allowed = [
        Allowance("none", 16),
        Allowance("mass 4", 4, Budget((4, 4, 4))),
        Allowance("path 4", 4, Budget((4, 4, 4), exponent=1.0)),
    ]
    found = list(line_up(short_trace, as_runtime(informed_table), PLACE, allowed))
    expected = [(AR, "none")]
    expected += [(cut, each.name) for each in allowed for cut in CUTS]
    assert [(each.cut, each.budget) for each in found] == expected
    assert len({each.name for each in found}) == len(found)
    budgets = {each.name: each.budget for each in allowed}
    assert all(each.contender.budget == budgets[each.budget] for each in found)
    assert found[0].contender.steps >= max(e.contender.steps for e in found)


def test_a_guided_policy_has_the_budgets_prices(
    short_trace: Trace, informed_table: CostTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides with the table within the budget."""
    asked: list[int] = []
    within = RuntimeTable.within_budget

    def noted(table: RuntimeTable, experts: int) -> RuntimeTable:
        asked.append(experts)
        return within(table, experts)

    monkeypatch.setattr(RuntimeTable, "within_budget", noted)
    allowed = [Allowance("none", 16), Allowance("mass 4", 4, Budget((4, 4, 4)))]
    list(line_up(short_trace, as_runtime(informed_table), PLACE, allowed))
    assert asked == [16, 4]


def test_a_table_without_calibration_is_refused(
    short_trace: Trace, saved_table: Path
) -> None:
    """It cannot guide."""
    allowed = [Allowance("none", 16)]
    with pytest.raises(ConfigError, match="evict-profile calibrate"):
        list(line_up(short_trace, RuntimeTable.load(saved_table), PLACE, allowed))
