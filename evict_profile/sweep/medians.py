"""How well the medians of cells are known: the unit of the stop rule and of the fit.

Six samples say little of their own spread. Cells that look precise by it are those
whose samples happened to lie close together, so that intervals from a cell's own
samples hold too little wherever they decided when to stop. The cells of a part share
one relative spread here: then how often a cell is measured depends on what all cells
show, and its interval holds also where the rule has stopped.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from evict_profile.cells import Cell
from evict_profile.stats import Floats, median_of_draws

MUCH_FURTHER, FAR_OUTSIDE = 3.0, 5.0
"""In interquartile ranges of the pooled samples."""

MIN_POOLED = 100
"""Of fewer samples the shape is not known well enough to correct anything by it."""

NORMAL_95 = 1.96


def medians_of(
    latencies: Mapping[Cell, Sequence[float]],
) -> tuple[tuple[Cell, ...], Floats, Floats]:
    """The cells that have latencies, in order; medians; their relative errors.

    Both float64 [cells]. The standard error is from the spread that the cells of a
    part share.
    """
    cells = tuple(sorted(cell for cell, values in latencies.items() if values))
    median_us, error = np.empty((2, len(cells)))
    parts = np.array([c.part for c in cells])
    for part in np.unique(parts):
        index = np.flatnonzero(parts == part)
        samples = [np.asarray(latencies[cells[i]]) for i in index]
        median_us[index], error[index] = _medians_and_errors(samples)
    return cells, median_us, error


def half_widths(latencies: Mapping[Cell, Sequence[float]]) -> dict[Cell, float]:
    """Relative half-width of the 95 % interval of each cell's median."""
    cells, _, error = medians_of(latencies)
    return dict(zip(cells, (NORMAL_95 * error).tolist(), strict=True))


def _medians_and_errors(cells: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The median of each cell's samples, and its relative standard error.

    Both from the pooled shape: where it is skewed, medians of few samples lie off its
    own, and are brought to it. A cell whose samples lie much further apart than others'
    was disturbed, and has an error as much larger.
    """
    low, medians, high = np.array([np.percentile(c, [25, 50, 75]) for c in cells]).T
    relative = [_relative(c, m) for c, m in zip(cells, medians, strict=True)]
    shape = _without_far(np.concatenate(relative))
    if not len(shape):
        return medians, np.zeros(len(cells))
    apart = (high - low) / medians / max(float(np.subtract(*_quartiles(shape))), 1e-12)
    disturbed = np.where(apart > MUCH_FURTHER, apart, 1.0)
    counts, place = np.unique([len(c) for c in cells], return_inverse=True)
    means, errors = np.array([median_of_draws(shape, n) for n in counts]).T[:, place]
    known = len(shape) >= MIN_POOLED
    shift = means - np.median(shape) if known else np.zeros(len(cells))
    return medians / (1.0 + shift), errors * disturbed


def _relative(samples: Floats, median: float) -> Floats:
    """Samples over their median, as far apart as samples of one law are.

    The median has taken one of their degrees of freedom. Of an odd number it is one
    of them, and says nothing of the spread.
    """
    relative, count = np.sort(samples) / median, len(samples)
    if count % 2:
        return np.delete(relative, count // 2)
    widened: Floats = 1.0 + (relative - 1.0) * np.sqrt(count / (count - 1))
    return widened


def _without_far(relative: Floats) -> Floats:
    """Samples over their cells' medians, less what lies far outside all others."""
    if not len(relative):
        return relative
    high, low = _quartiles(relative)
    reach = FAR_OUTSIDE * (high - low)
    middle = float(np.median(relative))
    return relative[np.abs(relative - middle) <= reach] if reach else relative


def _quartiles(values: Floats) -> tuple[float, float]:
    high, low = np.percentile(values, [75, 25])
    return float(high), float(low)
