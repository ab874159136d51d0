"""Cells with numbers of one's own."""

from collections.abc import Mapping

from evict_profile.replay.cell import Cell, Place, Standing, WidthPoint
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    ORACLE,
    RATE,
    THRESHOLD,
)
from evict_profile.stats import Estimate

SPEEDS = {
    AR: 100.0,
    FULL_TREE: 80.0,
    BEST_WIDTH: 120.0,
    BEST_PAIR: 120.5,
    THRESHOLD: 121.0,
    RATE: 130.0,
    ORACLE: 200.0,
}
SETTINGS = {
    BEST_WIDTH: "8 tokens at depth 5",
    BEST_PAIR: "6 tokens at depth 3",
    THRESHOLD: "0.2",
}


def make_cell(
    speeds: Mapping[str, float] | None = None,
    doubt: float = 0.005,
    place: Place | None = None,
    prompts: int = 20,
) -> Cell:
    """A cell of these tokens/s; intervals are `doubt` to either side, relatively."""
    known = SPEEDS | dict(speeds or {})
    standings = tuple(_standing(name, known, doubt) for name in known)
    width, pair = (
        WidthPoint(5, 8, known[BEST_WIDTH]),
        WidthPoint(3, 6, known[BEST_PAIR]),
    )
    return Cell(
        place or Place("code", 0.0, 1), prompts, 1000, standings, pair, width,
        (pair, width), (),
    )  # fmt: skip


def _standing(name: str, speeds: Mapping[str, float], doubt: float) -> Standing:
    def about(value: float, wide: float) -> Estimate:
        return Estimate(value, value * (1.0 - wide), value * (1.0 + wide))

    over = {
        other: about(speeds[name] / speed, doubt if other != name else 0.0)
        for other, speed in speeds.items()
    }
    some = about(4.0, 0.01)
    return Standing(
        name, SETTINGS.get(name, ""), about(speeds[name], doubt), over, *[some] * 8
    )
