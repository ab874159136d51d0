"""Advice that is chosen on one half of the prompts and judged on the other."""

from evict_profile.budgets.front import draw
from evict_profile.budgets.load import budgets_of
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.recommend import Bounds
from evict_profile.budgets.unseen import unseen
from evict_profile.runtime import CostTable
from tests.budgets.made_up import typical


def test_advice_is_judged_on_prompts_that_had_no_say(table: CostTable) -> None:
    """Chosen on one half, told with the other's numbers."""
    recording = budgets_of(typical(prompts=12), "made up")
    prices = Prices(table, recording)
    found = unseen(recording, prices, Bounds(kl=0.06))
    assert found
    name = found.point.setting.name
    assert found.says.startswith(f"Chosen on every other prompt it is {name}; on the")
    assert ("keeps what is asked" in found.says) is found.kept
    judged = draw(recording.half(1), prices).front
    assert found.point in judged.points


def test_few_prompts_or_no_advice_have_no_second_half(table: CostTable) -> None:
    """Four a half tell nothing."""
    few = budgets_of(typical(prompts=4), "made up")
    assert unseen(few, Prices(table, few), Bounds(kl=0.06)) is None
    recording = budgets_of(typical(prompts=12), "made up")
    assert unseen(recording, Prices(table, recording), Bounds(kl=1e-6)) is None
