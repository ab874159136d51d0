"""What to measure next: a pure function of what has been measured.

Purity is what makes a resumed sweep equal to an uninterrupted one: a killed sweep
loses the round it was in, recomputes it from the same samples, and goes on.

A cell has been measured enough when its median is known well enough, by the spread that
all cells of its part share. By its own few samples it would stop where they happen to
lie close together, and what it then says of itself would be wrong (`medians`).
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from evict_profile.cells import Cell, arrays_of
from evict_profile.config import StopSpec
from evict_profile.config.sweep import AdaptiveSpec
from evict_profile.stats import ErrorSummary
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.medians import half_widths
from evict_profile.table import Precision

History = Mapping[Cell, Sequence[float]]
"""Latencies of each measured cell, in order; an empty list for one that failed."""


MAX_MISFIT = 0.02
"""Root mean square; a p90 of some 3.5 %."""


class SweepPlan(Protocol):
    """Says which cells are still open, given all samples so far."""

    def open_cells(self, history: History) -> list[Cell]:
        """Cells to measure in the next round; empty when the sweep is done."""


@dataclass(frozen=True)
class Uncertainty:
    """What a fit says of itself: its held-out error, and where it is least sure."""

    held_out: ErrorSummary
    relative_std: Mapping[Cell, float]


class FitGuide(Protocol):
    """Fits samples, and says where more of them would serve."""

    def uncertainty(self, history: History, cells: Sequence[Cell]) -> Uncertainty:
        """How unsure the fit is of cells that were not measured."""

    def misfit(self, history: History) -> float:
        """Relative error at the validation cells that noise does not explain."""


@dataclass(frozen=True)
class GridPlan:
    """Measure every cell until its own stop rule is met, and more where a fit is wrong.

    Where validation cells show that, they join the fit, and others validate.
    """

    grid: Grid
    stop: StopSpec
    guide: FitGuide

    def open_cells(self, history: History) -> list[Cell]:
        """Cells that are not measured well enough and have not failed."""
        widths = half_widths(history)
        due = dict.fromkeys([*self.grid.measured, *history])
        unfinished = [c for c in due if self._is_open(c, history, widths)]
        return unfinished or asked_by_validation(self.grid, history, self.guide)

    def _is_open(
        self, cell: Cell, history: History, widths: Mapping[Cell, float]
    ) -> bool:
        if cell not in history:
            return True
        count = len(history[cell])
        return count > 0 and state_of(count, widths[cell], self.stop) == "open"


@dataclass(frozen=True)
class AdaptivePlan:
    """Measure where the fit is least sure; stop at the asked held-out error.

    Starts from cells spread over the grid; whenever all chosen cells are done, asks
    how unsure the fit is of the others and adds the least sure. The chosen cells are
    those that have samples, so that no state is kept beside the samples.

    A cell is done at the fewest samples that give its median an interval: the fit
    averages noise over cells, so another cell teaches it more than another sample.
    Natural routing is not chosen, because the fit is made of forced cells alone.
    """

    grid: Grid
    stop: StopSpec
    adaptive: AdaptiveSpec
    guide: FitGuide

    def open_cells(self, history: History) -> list[Cell]:
        """Unfinished cells; else the next choice; empty when the target is met."""
        if not history:
            first = spread_cells(self.grid, self.adaptive.first_cells)
            return [*first, *self.grid.validation]
        fewest = self.stop.min_samples
        unfinished = [c for c, seen in history.items() if 0 < len(seen) < fewest]
        if unfinished:
            return unfinished
        rest = [c for c in self._useful() if c not in history]
        if not rest:
            return asked_by_validation(self.grid, history, self.guide)
        unsure = self.guide.uncertainty(history, rest)
        if self._good_enough(unsure.held_out):
            return asked_by_validation(self.grid, history, self.guide)
        rest.sort(key=lambda c: (-unsure.relative_std[c], c))
        return rest[: self.adaptive.cells_per_round]

    def _useful(self) -> list[Cell]:
        return [c for c in self.grid.cells if c.part == "non_moe" or c.union > 0]

    def _good_enough(self, error: ErrorSummary) -> bool:
        target = self.adaptive
        return error.median <= target.held_out_median and (
            error.p90 <= target.held_out_p90
        )


def asked_by_validation(grid: Grid, history: History, guide: FitGuide) -> list[Cell]:
    """The next block of validation cells where this one shows the fit to be wrong."""
    following = grid.after(grid.validating(history))
    wrong = bool(following) and guide.misfit(history) > MAX_MISFIT
    return list(following) if wrong else []


def spread_cells(grid: Grid, count: int) -> list[Cell]:
    """`count` cells of each part, far apart (greedy maximin), corners first.

    Distances are over ranks of each axis, so that 1 to 2 tokens is as far as 32 to
    64. The anchor is always among them.
    """
    chosen: list[Cell] = []
    for part in ("layers", "non_moe"):
        cells = [c for c in grid.cells if c.part == part and c.union > 0]
        cells = cells or [c for c in grid.cells if c.part == part]
        if cells:
            chosen += _maximin(cells, count if part == "layers" else min(count, 4))
    return chosen if grid.anchor in chosen else [*chosen, grid.anchor]


def _maximin(cells: list[Cell], count: int) -> list[Cell]:
    axes = arrays_of(cells)
    points = np.stack([_ranks(axes[a]) for a in ("width", "union", "context", "batch")])
    start = int(points.sum(axis=0).argmin())
    picked = [start]
    nearest = np.abs(points - points[:, [start]]).sum(axis=0)
    while len(picked) < min(count, len(cells)):
        far = int(nearest.argmax())
        picked.append(far)
        nearest = np.minimum(nearest, np.abs(points - points[:, [far]]).sum(axis=0))
    return [cells[i] for i in picked]


def _ranks(values: np.ndarray) -> np.ndarray:
    levels, index = np.unique(values, return_inverse=True)
    return index / max(1, len(levels) - 1)


def round_order(
    cells: Sequence[Cell], anchor: Cell, seed: int, number: int
) -> list[Cell]:
    """The cells of one round in seeded random order, anchor always included.

    Interleaving turns slow drift of the machine into noise of every cell, where a
    sequential order would turn it into a slope along the axis measured last.
    """
    ordered = sorted({*cells, anchor})
    random.Random(f"{seed}/{number}").shuffle(ordered)
    return ordered


def sample_seed(seed: int, number: int, cell: Cell, repeat: int) -> int:
    """Seed of one sample, in 0..2**31: the same in any order and after any crash."""
    text = f"{seed}/{number}/{cell!r}/{repeat}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) >> 1


CellState = Literal["open", "precise", "capped"]


def state_of(count: int, half_width: float, rule: StopSpec) -> CellState:
    """Whether a cell is done, and why, from its samples and its median's half-width.

    "precise": the 95 % interval of the median is narrow enough. "capped": the most
    samples allowed have been taken.
    """
    if count < rule.min_samples:
        return "open"
    if half_width <= rule.relative_half_width:
        return "precise"
    return "capped" if count >= rule.max_samples else "open"


def samples_left(history: History, cells: Sequence[Cell], rule: StopSpec) -> int:
    """A guess at how many samples these cells still need, for the time left."""
    widths = half_widths(history)
    seen = [(len(history.get(c, ())), widths.get(c, np.inf)) for c in cells]
    return sum(_samples_needed(count, width, rule) for count, width in seen)


def _samples_needed(count: int, half_width: float, rule: StopSpec) -> int:
    if count < rule.min_samples:
        return rule.min_samples - count
    if state_of(count, half_width, rule) != "open":
        return 0
    ratio = min(half_width / rule.relative_half_width, rule.max_samples)
    return max(1, min(rule.max_samples, round(count * ratio**2)) - count)


def precision_of(history: History, rule: StopSpec) -> Precision | None:
    """What the stop rule delivered; None where no cell has as many samples as asked."""
    widths = half_widths(history)
    if not any(len(history[cell]) >= rule.min_samples for cell in widths):
        return None
    reached = [
        state_of(len(history[cell]), width, rule) == "precise"
        for cell, width in widths.items()
    ]
    median, p90 = np.percentile(list(widths.values()), [50, 90])
    return Precision(
        asked=rule.relative_half_width,
        cells=len(widths),
        reached=float(np.mean(reached)),
        median=float(median),
        p90=float(p90),
    )
