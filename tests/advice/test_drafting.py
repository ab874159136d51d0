"""The draft's own table prices what a step of llama.cpp decodes beside verification."""

from pathlib import Path

import pytest

from evict_profile.advice.drafting import DraftCost
from evict_profile.errors import ConfigError, TableError
from evict_profile.records import replace
from evict_profile.table import CostTable, Staircase

FACTS = {"device": "a CPU", "threads": 1, "library_sha256": "abc"}


@pytest.fixture
def target(saved_table: Path) -> CostTable:
    """Of llama.cpp, and a graph takes 7 us."""
    table = CostTable.load(saved_table)
    made = replace(table.provenance, fingerprint=FACTS, new_graph_us=7.0)
    key = replace(table.key, engine="llama_cpp", model="large")
    return replace(table, key=key, provenance=made)


@pytest.fixture
def draft(target: CostTable) -> CostTable:
    """10 us a token and 5 us of every forward."""
    steps = tuple(5.0 + 10.0 * max(1, n) for n in range(17))
    stairs = Staircase(1, 64, steps, steps, steps)
    key = replace(target.key, model="small")
    return replace(target, key=key, staircases=(stairs,), path=Path("draft.json"))


def test_a_step_drafts_one_by_one_and_reads_what_was_verified(
    target: CostTable, draft: CostTable
) -> None:
    """Three of 15 us, four tokens in one of 45, and a graph for either shape."""
    cost = DraftCost(target, draft=draft)
    assert cost.us(1, 3, 64) == 3 * 15.0 + 45.0 + 2 * 7.0
    assert cost.us(1, 0, 64) == 0.0
    assert str(cost) == "forwards of small, by its own table"


def test_a_time_of_a_level_beside_a_table_is_refused(
    target: CostTable, draft: CostTable
) -> None:
    with pytest.raises(ConfigError, match="or --draft-table, not both"):
        DraftCost(target, 1.0, draft)


def test_a_table_of_another_engine_is_refused(
    target: CostTable, draft: CostTable
) -> None:
    """Whichever of the two it is."""
    other = replace(draft, key=replace(draft.key, engine="sglang"))
    for pair in ((target, other), (other, draft)):
        with pytest.raises(ConfigError, match=r"draft\.json: a table of sglang"):
            DraftCost(pair[0], draft=pair[1])


def test_a_draft_is_as_slow_as_it_was_on_average(
    target: CostTable, draft: CostTable
) -> None:
    """Prices are of the speed that was frequent: here of 1.2 and of 1.5 of it."""

    def slowed(table: CostTable, times: float) -> CostTable:
        made = replace(
            table.provenance, reference_us=50.0, mean_reference_us=50.0 * times
        )
        return replace(table, provenance=made)

    usual_us = DraftCost(target, draft=draft).us(1, 2, 64)
    cost = DraftCost(slowed(target, 1.2), draft=slowed(draft, 1.5))
    assert cost.us(1, 2, 64) == pytest.approx(usual_us * 1.5 / 1.2)


@pytest.mark.parametrize("fact", [{"threads": 2}, {"library_sha256": "abd"}])
def test_a_table_of_another_machine_or_build_is_refused(
    target: CostTable, draft: CostTable, fact: dict[str, object]
) -> None:
    """The fact is named, and the fix."""
    made = replace(draft.provenance, fingerprint=FACTS | fact)
    says = rf"{next(iter(fact))}: .* here, .* there.*profile small as large was"
    with pytest.raises(ConfigError, match=says):
        DraftCost(target, draft=replace(draft, provenance=made))


def test_a_table_from_before_graphs_were_told_apart_is_refused(
    target: CostTable, draft: CostTable
) -> None:
    older = replace(target, provenance=replace(target.provenance, new_graph_us=None))
    with pytest.raises(ConfigError, match="profile large again"):
        DraftCost(older, draft=draft)


def test_a_draft_priced_for_fewer_tokens_or_contexts_is_refused(
    target: CostTable, draft: CostTable
) -> None:
    """It reads as many as the model verifies."""
    domain = {**draft.fit.domain, "width": (1, 8)}
    narrow = replace(draft, fit=replace(draft.fit, domain=domain))
    with pytest.raises(ConfigError, match=r"prices up to 8 tokens.*up to 16"):
        DraftCost(target, draft=narrow)
    with pytest.raises(TableError, match="context"):
        DraftCost(target, draft=draft).us(1, 1, 4096)
