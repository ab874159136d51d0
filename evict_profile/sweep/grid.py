"""The cells of a sweep: the product of its axes, less what cannot exist.

The whole product has few levels an axis for many cells. As many cells spread over finer
axes show where a cost bends or jumps: at a kernel's tiles, at captured widths, where
weights stay in a cache.

Cells between the levels are both fitted and used to validate: a fit through the powers
of two cannot see that an engine pads everything else to them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice, product

import numpy as np

from evict_profile.cells import Cell
from evict_profile.config import GridSpec, ModelSpec, SweepSpec
from evict_profile.errors import ConfigError
from evict_profile.stats import Ints

AXES = ("width", "union", "context", "batch")

MAX_DRAWS = 4096
"""Places that are tried; where hardly any is feasible, fewer are measured."""

NATURAL_SHARE, NON_MOE_SHARE = 4, 8
"""Of so many spread forced cells, one is measured beside with each."""

MIN_FORCED_CELLS, MIN_NON_MOE_CELLS = 8, 3
"""Of a fit, whose held-out error needs folds of whole cells."""


@dataclass(frozen=True)
class Grid:
    """Cells to measure, the anchor among them, and those that cannot be.

    Cells `between` the levels are fitted; `validation` cells lie there and are not.
    """

    cells: tuple[Cell, ...]
    infeasible: tuple[tuple[Cell, str], ...]
    anchor: Cell
    between: tuple[Cell, ...] = ()
    validation: tuple[Cell, ...] = ()

    @property
    def measured(self) -> tuple[Cell, ...]:
        return self.cells + self.between + self.validation

    def validating(self, measured: Collection[Cell]) -> tuple[Cell, ...]:
        """The validation cells of a run: of older sweeps all forced ones off levels."""
        if any(cell in measured for cell in self.validation):
            return self.validation
        planned = {*self.cells, *self.between}
        return tuple(c for c in measured if c.union and c not in planned)


def make_grid(spec: SweepSpec, model: ModelSpec) -> Grid:
    try:
        unions = spec.grid.unions_for(model)
    except ValueError as error:
        raise ConfigError(f"sweep '{spec.name}': {error}") from error
    axes, points = spec.grid, _points(spec.grid)
    forced = [
        Cell("layers", width, union, context, batch, "balanced")
        for (width, context, batch), union in product(points, unions)
    ]
    infeasible = {c: why for c in forced if (why := _why_not(c, model))}
    cells = [c for c in forced if c not in infeasible]
    if not cells:
        raise ConfigError(
            f"sweep '{spec.name}': none of its unions can be activated by its widths; "
            "add larger widths or smaller unions"
        )
    natural = [Cell("layers", w, 0, c, b, "natural") for w, c, b in points]
    non_moe = [] if spec.whole else _non_moe(points, model)
    off_levels = tuple(islice(_between(spec, model, cells), 2 * axes.validation))
    if count := axes.cells:
        cells = _spread(cells, count, spec.seed)
        natural = _spread(natural, count // NATURAL_SHARE, spec.seed)
        non_moe = _spread(non_moe, count // NON_MOE_SHARE, spec.seed)
    measured = [*cells, *(natural if axes.natural else []), *non_moe]
    refused, anchor = tuple(infeasible.items()), _anchor(cells)
    # Odd ones validate, so that half of what little there may be does.
    return Grid(
        tuple(sorted(measured)), refused, anchor, off_levels[::2], off_levels[1::2]
    )


def too_few(cells: Collection[Cell], whole: bool) -> str:
    """What cells a fit lacks, or ""; forwards that are `whole` have one part."""
    unions = [cell.union for cell in cells if cell.split == "balanced"]
    non_moe = sum(cell.part == "non_moe" for cell in cells)
    least = 0 if whole else MIN_NON_MOE_CELLS
    if len(unions) < MIN_FORCED_CELLS or non_moe < least:
        return (
            f"{len(unions)} forced and {non_moe} non-MoE cells, and a fit needs "
            f"{MIN_FORCED_CELLS} and {least}"
        )
    if len(set(unions)) == 1:
        return f"forced cells of one union, U={unions[0]}, and a fit needs two unions"
    return ""


def _points(axes: GridSpec) -> list[tuple[int, int, int]]:
    return [
        (width, context, batch)
        for width, context, batch in product(axes.width, axes.context, axes.batch)
        if width * batch <= axes.max_tokens
    ]


def _spread(cells: list[Cell], count: int, seed: int) -> list[Cell]:
    """Corners first, the rest evenly over all axes at once."""
    levels, places = _levels(cells), set(map(_place, cells))
    kept = {_place(cell) for cell in _corners(cells)}
    for point in _halton(seed):
        if len(kept) >= min(count, len(places)):
            break
        place = tuple(map(_level, levels.values(), point))
        if place in places:
            kept.add(place)
    return [cell for cell in cells if _place(cell) in kept]


def _place(cell: Cell) -> tuple[int, ...]:
    return tuple(getattr(cell, axis) for axis in AXES)


def _corners(cells: list[Cell]) -> Iterator[Cell]:
    together = defaultdict(list)
    for cell in cells:
        together[cell.context, cell.batch].append(cell)
    for group in together.values():
        for end in (min, max):
            width = end(c.width for c in group)
            at_end = [c for c in group if c.width == width]
            yield min(at_end)
            yield max(at_end)


def _between(spec: SweepSpec, model: ModelSpec, cells: list[Cell]) -> Iterator[Cell]:
    """Forced cells inside the axes, at the values off their levels.

    Each aim, spread evenly by ratio, goes to the nearest such value, which others may
    share. Batches and widths of whole forwards are those that the engine captured.
    """
    levels, most = _levels(cells), max(c.tokens for c in cells)
    captured = ("batch", "width") if spec.whole else ()
    off = {axis: _off_levels(levels[axis]) for axis in AXES if axis not in captured}
    drawn = set(cells)
    for point in _halton(spec.seed):
        place = {
            axis: _nearest(off[axis], levels[axis], share)
            if axis in off
            else _level(levels[axis], share)
            for axis, share in zip(AXES, point, strict=True)
        }
        cell = Cell("layers", split="balanced", **place)
        if cell.tokens <= most and cell not in drawn and not _why_not(cell, model):
            drawn.add(cell)
            yield cell


def _levels(cells: list[Cell]) -> dict[str, list[int]]:
    return {axis: sorted({getattr(c, axis) for c in cells}) for axis in AXES}


@cache
def _halton(seed: int) -> list[list[float]]:
    """Halton's points (1960) in the unit cube of the axes."""
    from scipy.stats import qmc

    drawn = qmc.Halton(len(AXES), seed=seed).random(MAX_DRAWS)
    places: list[list[float]] = drawn.tolist()
    return places


def _level(levels: list[int], share: float) -> int:
    return levels[int(share * len(levels))]


def _off_levels(levels: list[int]) -> Ints:
    values = np.setdiff1d(np.arange(levels[0], levels[-1] + 1), levels)
    return values if len(values) else np.array(levels)


def _nearest(values: Ints, levels: list[int], share: float) -> int:
    aim = round(levels[0] * (levels[-1] / levels[0]) ** share)
    return int(values[np.abs(values - aim).argmin()])


def _why_not(cell: Cell, model: ModelSpec) -> str:
    slots = cell.tokens * model.moe.top_k
    if cell.union <= slots:
        return ""
    return (
        f"{cell.tokens} tokens x top-{model.moe.top_k} fill {slots} slots, "
        f"fewer than U={cell.union}"
    )


def _non_moe(points: list[tuple[int, int, int]], model: ModelSpec) -> list[Cell]:
    """One cell a distinct cost: without dense layers, only tokens matter."""
    if model.dense_layers:
        return [Cell("non_moe", w, 0, c, b, "natural") for w, c, b in points]
    context = min(c for _, c, _ in points)
    by_tokens = {w * b: (w, b) for w, _, b in sorted(points, reverse=True)}
    return [Cell("non_moe", w, 0, context, b, "natural") for w, b in by_tokens.values()]


def _anchor(forced: list[Cell]) -> Cell:
    context, batch = min(c.context for c in forced), min(c.batch for c in forced)
    near = [c for c in forced if (c.context, c.batch) == (context, batch)]
    widths = sorted({c.width for c in near})
    same = sorted(c for c in near if c.width == widths[len(widths) // 2])
    return same[len(same) // 2]
