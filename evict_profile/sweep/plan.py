"""What to measure next: a pure function of what has been measured.

So a resumed sweep equals an uninterrupted one. A cell has been measured enough when its
median is known well enough, by the spread that all cells of its part share
(`cells.measured`).
"""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evict_profile.cells import (
    Cell,
    cells_of,
    failed_cells,
    frame_of,
    measured,
    with_latency,
)
from evict_profile.config import StopSpec
from evict_profile.sweep.grid import AXES, Grid

NORMAL_95 = 1.96


@dataclass(frozen=True)
class GridPlan:
    grid: Grid
    stop: StopSpec

    def samples_due(self, frame: pd.DataFrame) -> dict[Cell, int]:
        """About how many more samples each open cell needs; a failed cell is closed."""
        timed, failed = with_latency(frame), failed_cells(frame)
        cells = measured(timed.loc[[c not in failed for c in cells_of(timed)]])
        counts = cells["samples_us"].map(len).to_dict()
        half_widths = (NORMAL_95 * cells["error"]).to_dict()
        due = {
            cell: samples_needed(
                counts.get(cell, 0), half_widths.get(cell, math.inf), self.stop
            )
            for cell in self.grid.measured
            if cell not in failed
        }
        return {cell: samples for cell, samples in due.items() if samples}


def spread_cells(grid: Grid, count: int) -> list[Cell]:
    """`count` forced cells, up to four others and the anchor, far apart by ranks of
    axes.
    """
    forced = [c for c in grid.cells if c.union > 0]
    non_moe = [c for c in grid.cells if c.part == "non_moe"]
    chosen = _far_apart(forced, count) + _far_apart(non_moe, min(count, 4))
    return chosen if grid.anchor in chosen else [*chosen, grid.anchor]


def _far_apart(cells: list[Cell], count: int) -> list[Cell]:
    if not cells:
        return []
    axes, nearest = frame_of(cells), np.full(len(cells), np.inf)
    points = np.stack([_ranks(axes[axis].to_numpy()) for axis in AXES])
    picked = [int(points.sum(axis=0).argmin())]
    while len(picked) < min(count, len(cells)):
        apart = np.abs(points - points[:, picked[-1:]]).sum(axis=0)
        nearest = np.minimum(nearest, apart)
        picked.append(int(nearest.argmax()))
    return [cells[i] for i in picked]


def _ranks(values: np.ndarray) -> np.ndarray:
    levels, index = np.unique(values, return_inverse=True)
    return index / max(1, len(levels) - 1)


def round_order(
    cells: Sequence[Cell], anchor: Cell, seed: int, number: int
) -> list[Cell]:
    """The cells of one round in seeded random order, anchor always included.

    Interleaving turns slow drift of the machine into noise of every cell; a sequential
    order would turn it into a slope along the axis measured last.
    """
    ordered = sorted({*cells, anchor})
    random.Random(f"{seed}/{number}").shuffle(ordered)
    return ordered


def sample_seed(seed: int, number: int, cell: Cell, repeat: int) -> int:
    """Seed of one sample, in 0..2**31: the same in any order and after any crash."""
    text = f"{seed}/{number}/{cell!r}/{repeat}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) >> 1


def samples_needed(count: int, half_width: float, rule: StopSpec) -> int:
    """The stop rule: 0 for a cell that is done, else a guess at what it still needs."""
    if count < rule.min_samples:
        return rule.min_samples - count
    if half_width <= rule.relative_half_width or count >= rule.max_samples:
        return 0
    ratio = min(half_width / rule.relative_half_width, rule.max_samples)
    return max(1, min(rule.max_samples, round(count * ratio**2)) - count)
