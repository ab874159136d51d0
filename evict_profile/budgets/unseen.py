"""Whether advice holds on prompts that it was not chosen on.

Whatever is the best of many settings owes something to luck. So the choice is made once
more on every other prompt, and judged on the rest.
"""

from dataclasses import dataclass

from evict_profile.budgets.front import Point, draw
from evict_profile.budgets.load import BudgetRecord
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.recommend import Bounds, quality, recommend
from evict_profile.replay.verdict import percent
from evict_profile.stats import MIN_PROMPTS


@dataclass(frozen=True)
class Unseen:
    """What one half of the prompts advises, on the other half.

    Attributes:
        point: the setting as the other half has it.
        kept: whether it keeps there what was asked.
        says: a sentence.
    """

    point: Point
    kept: bool
    says: str


def unseen(recording: BudgetRecord, prices: Prices, bounds: Bounds) -> Unseen | None:
    """None where one half advises no budget, or the other has too few prompts."""
    halves = [recording.half(index) for index in (0, 1)]
    if min(len(half.prompts) for half in halves) < MIN_PROMPTS:
        return None
    chosen, judged = (draw(half, prices).front for half in halves)
    advice = recommend(chosen, bounds)
    if advice.choice != "take the budget" or advice.point is None:
        return None
    setting = advice.point.setting
    point = next(each for each in judged.points if each.setting == setting)
    kept = advice.asked.keeps(point)
    says = (
        f"Chosen on every other prompt it is {setting.name}; on the rest, which had no "
        f"say, {percent(point.earned)} counts, and it "
        f"{'keeps' if kept else 'does not surely keep'} what is asked: "
        f"{quality(point)}."
    )
    return Unseen(point, kept, says)
