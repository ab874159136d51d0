"""Rules against one another on a recording whose truth is known."""

import numpy as np
import pytest

from evict_profile.budgets.compare import (
    accept_says,
    comparisons,
    oracle_needs,
    oracle_says,
    rivals,
    sayings,
)
from evict_profile.budgets.front import Drawn, draw
from evict_profile.budgets.load import BudgetRecord, budgets_of
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.schema import MASS, NONE, ORACLE, STATIC
from evict_profile.runtime import CostTable
from tests.budgets.made_up import both, setting, table_of


@pytest.fixture(scope="module")
def drawn(recording: BudgetRecord, prices: Prices) -> Drawn:
    """All workloads together."""
    return draw(recording, prices)


def drawn_of(divergences: dict[tuple[str, int], float], table: CostTable) -> Drawn:
    """Six prompts alike, so much KL a token under each rule and budget."""
    found, settings = [], [setting(NONE)]
    settings += [setting(*name) for name in divergences]
    for each in settings:
        kl = divergences.get((each.rule, each.budget), 0.0)
        for prompt in range(6):
            found += both(each, prompt, kl=kl)
    recording = budgets_of(table_of(found, settings), "made up")
    return draw(recording, Prices(table, recording))


def test_rules_have_the_rival_that_they_add_to() -> None:
    """Mass is dynamic, static is not; a plus adds to what stands before it."""
    pairs = rivals()
    found = dict(reversed(pairs))
    assert found[MASS] == STATIC
    assert found["path"] == found["layers"] == found["truncation"] == MASS
    assert all(found[r] == r.rpartition("+")[0] for r in found if "+" in r)
    assert len(set(pairs)) == len(pairs)
    assert all((r, MASS) in pairs for r in found if "+" in r)
    assert STATIC not in found
    assert ORACLE not in found


def test_rules_are_compared_at_equal_budgets(drawn: Drawn) -> None:
    """A quarter of the divergence of static, on every prompt and so in every
    resample."""
    found = comparisons(drawn.draws, drawn.resamples)
    mass = [each for each in found if each.name == "mass against static"]
    assert [each.budget for each in mass] == [8, 16, 24]
    for each in mass:
        assert each.kl.value == pytest.approx(0.25)
        assert each.kl.high == pytest.approx(0.25)
        assert each.kl.below_one
        assert each.speed.value == each.accept.value == 1.0


def test_a_pair_is_told_in_one_sentence(drawn: Drawn) -> None:
    """What it diverges, what it is worth in speed, and where that is sure."""
    said = sayings(drawn.front, comparisons(drawn.draws, drawn.resamples))
    assert said[0] == (
        "Mass against static, at equal budgets: divergence -75.0 %, surely less at 3 "
        "of 3 budgets, surely more at 0; speed +0.0 %, surely higher at 0, surely "
        "lower at 0."
    )
    assert said[1].startswith("Truncation against mass, at equal budgets: divergence +")


def test_accept_length_stands_beside_the_claim(drawn: Drawn) -> None:
    """At 8 experts each text takes one step more."""
    says = accept_says(drawn.front)
    assert "+0.0 % at 16, +0.0 % at 24. MoE-Spec reports -1.4 %" in says
    assert says.endswith("here it loses no more from 16 experts on.")


def test_the_oracle_needs_fewer_experts(table: CostTable) -> None:
    """Halving the divergence by 8 experts, it needs 8 fewer than mass."""
    halves = {(ORACLE, b): 0.1 * 0.5 ** (b / 8.0) for b in (4, 8, 16, 24)}
    mass = {(MASS, b): 0.2 * 0.5 ** (b / 8.0) for b in (8, 16, 24)}
    found = drawn_of({**halves, **mass}, table)
    needs = oracle_needs(found.draws, found.resamples)
    assert [need.budget for need in needs] == [8, 16, 24]
    assert [need.at_most for need in needs] == [True, False, False]
    shares = [need.share.value for need in needs]
    assert shares == pytest.approx([4 / 8, 8 / 16, 16 / 24])
    assert "fewer experts: -50.0 % or fewer still at 8, -50.0 % at 16, -33.3 % at " in (
        oracle_says(needs)
    )


def test_what_an_oracle_far_better_needs_is_not_guessed(table: CostTable) -> None:
    """Below its smallest budget nothing was recorded."""
    found = drawn_of(
        {(ORACLE, 8): 1e-3, (ORACLE, 16): 1e-4, (MASS, 16): 0.1, (MASS, 24): 0.05},
        table,
    )
    needs = oracle_needs(found.draws, found.resamples)
    assert all(need.at_most for need in needs)
    assert "-50.0 % or fewer still at 16" in oracle_says(needs)


def test_noise_does_not_make_hindsight_worse(table: CostTable) -> None:
    """More experts that seem to diverge more are taken as diverging alike."""
    oracle = {(ORACLE, 8): 0.1, (ORACLE, 16): 0.2, (ORACLE, 24): 0.025}
    found = drawn_of({**oracle, (MASS, 24): 0.05}, table)
    need = oracle_needs(found.draws, found.resamples)[0]
    # From 16 experts, which stand at 0.1, half the way to 24 in the logarithm.
    assert need.share.value == pytest.approx(20 / 24)


def test_one_budget_of_the_oracle_is_no_line(table: CostTable) -> None:
    """Nothing can be read between one point."""
    found = drawn_of({(ORACLE, 8): 1e-3, (MASS, 8): 1e-2}, table)
    assert oracle_needs(found.draws, found.resamples) == ()


def test_no_divergence_at_all_is_no_trouble(table: CostTable) -> None:
    """Where nothing differs, a ratio is one."""
    found = drawn_of({(STATIC, 8): 0.0, (MASS, 8): 0.0}, table)
    only = comparisons(found.draws, found.resamples)[0]
    assert np.isfinite(only.kl.value)
    assert only.kl.value == 1.0
