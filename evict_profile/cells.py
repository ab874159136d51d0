"""Cells and samples: the points to measure, and the timed forwards.

Every sample holds requested and observed values, so that a forward that did other work
than requested is found and left out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from evict_profile.stats import Floats, main_mode, median_of_draws

Part = Literal["layers", "non_moe"]
Split = Literal["balanced", "natural"]

DISTURBED_IQR_RATIO, OUTLIER_IQRS = 3.0, 5.0
"""In interquartile ranges of the pooled samples."""

MIN_POOLED = 100
"""Of fewer samples the shape is not known well enough to correct anything by it."""

LATEST_UNIX = 253402214400.0
"""The last day that a date can have."""

OK = "ok"
"""Status of a sample that was timed; any other status comes with a reason."""


@dataclass(frozen=True, order=True)
class Cell:
    """One point to measure.

    Attributes:
        part: "layers" times the MoE layers; "non_moe" times all else that a forward
            runs: embedding, dense layers, final norm, head.
        width: n, tokens that one request verifies, root included.
        union: U, distinct experts forced in every MoE layer; 0 with natural routing
            and outside the MoE layers.
        context: tokens already in each request's KV cache.
        split: how token slots fall on the chosen experts. "balanced": counts differ
            by at most one; "natural": as the router says.
    """

    part: Part
    width: int
    union: int
    context: int
    batch: int
    split: Split

    @property
    def tokens(self) -> int:
        return self.width * self.batch

    def __str__(self) -> str:
        where = f"n={self.width} context={self.context} batch={self.batch}"
        if self.part == "non_moe":
            return f"non-MoE {where}"
        if self.split == "natural":
            return f"natural {where}"
        return f"U={self.union} {where} {self.split}"


@dataclass(frozen=True)
class Reading:
    """What a runner answers of one forward.

    Attributes:
        clock_us: process CPU time of one thread on a CPU, device events around a graph
            replay on a GPU.
        reference_us: mean clock of the reference work timed right before and after; NaN
            where the clock needs none.
        observed_width: tokens a request really ran, padding included.
        observed_union: mean distinct experts over the MoE layers; NaN for "non_moe".
        union_low, union_high: smallest and largest over the layers.
    """

    clock_us: float
    reference_us: float
    observed_width: int
    observed_union: float
    union_low: int
    union_high: int
    at_unix: float


UNTIMED = Reading(math.nan, math.nan, 0, math.nan, 0, 0, 0.0)


@dataclass(frozen=True)
class Sample:
    """One timed forward of a cell, or the reason why there is none.

    Attributes:
        round, order: which pass, and which place in it.
        session: which session of the runner, as "#number".
        seed: chose the experts, the split and the tree of this very forward.
        events: throttle or clock events seen around the sample; "" for none.
    """

    cell: Cell
    round: int
    order: int
    seed: int
    reading: Reading = UNTIMED
    status: str = OK
    reason: str = ""
    events: str = ""
    session: str = ""


CELL_FIELDS = tuple(f.name for f in fields(Cell))
_FIELDS = [f.name for kind in (Cell, Sample, Reading) for f in fields(kind)]
_COLUMNS = [name for name in _FIELDS if name not in ("cell", "reading")]


def to_frame(samples: Iterable[Sample]) -> pd.DataFrame:
    rows = [vars(s.cell) | vars(s) | vars(s.reading) for s in samples]
    return pd.DataFrame(rows, columns=_COLUMNS)


def with_numbers(stored: pd.DataFrame) -> pd.DataFrame:
    names = ("clock_us", "reference_us", "at_unix", "observed_union")
    as_numbers = {n: pd.to_numeric(stored[n], errors="coerce") for n in names}
    return stored.assign(**as_numbers)


def with_latency(frame: pd.DataFrame) -> pd.DataFrame:
    """The timed samples of a frame, with their `latency_us`.

    On a shared CPU, work and reference slow down together, so a latency is `clock /
    reference * reference_mode_us`. A clock without reference is taken as it is. Samples
    of no possible time, place or reference are left out.
    """
    timed = frame[frame["status"] == OK].pipe(_possible)
    clock_us, usual_us = timed["clock_us"], reference_mode_us(timed)
    if usual_us is None:
        return timed.assign(latency_us=clock_us)
    scale = (usual_us / timed["reference_us"]).fillna(1.0)
    return timed.assign(latency_us=clock_us * scale)


def _possible(timed: pd.DataFrame) -> pd.DataFrame:
    timed = with_numbers(timed)
    when = timed["clock_us"] + timed["at_unix"]
    kept = (timed["clock_us"] > 0.0) & np.isfinite(when)
    kept &= ~((timed["at_unix"] < 0.0) | (timed["at_unix"] > LATEST_UNIX))
    kept &= ~(timed["reference_us"] <= 0.0)
    kept &= timed["part"].isin(get_args(Part)) & timed["split"].isin(get_args(Split))
    return timed[kept & timed[list(CELL_FIELDS)].notna().all(axis=1)]


def reference_mode_us(timed: pd.DataFrame) -> float | None:
    """The reference at the speed that the machine had most; None without one."""
    reference = timed["reference_us"].dropna().to_numpy()
    return main_mode(reference) if len(reference) else None


def cell_of(row: Any) -> Cell:
    return Cell(**{name: getattr(row, name) for name in CELL_FIELDS})


def cells_of(frame: pd.DataFrame) -> list[Cell]:
    return list(map(Cell, *(frame[name].tolist() for name in CELL_FIELDS)))


def failed_cells(frame: pd.DataFrame) -> set[Cell]:
    return set(cells_of(frame[frame["status"] != OK]))


def frame_of(cells: Iterable[Cell]) -> pd.DataFrame:
    """One row a cell, with its fields and `tokens`; the index is the cell itself."""
    cells = list(cells)
    names = (*CELL_FIELDS, "tokens")
    columns = {name: [getattr(cell, name) for cell in cells] for name in names}
    return pd.DataFrame(columns, index=pd.Index(cells, dtype=object))


def places_of(cells: pd.DataFrame) -> tuple[Floats, Floats, Floats, Floats]:
    """Tokens, union, context and batch of cells, each float64 [cells]."""
    axes = ("tokens", "union", "context", "batch")
    tokens, union, context, batch = (cells[a].to_numpy(np.float64) for a in axes)
    return tokens, union, context, batch


def samples_by_cell(timed: pd.DataFrame) -> pd.Series:
    return timed.groupby(list(CELL_FIELDS))["latency_us"].agg(list)


def measured(timed: pd.DataFrame) -> pd.DataFrame:
    """What samples with their `latency_us` say of their cells.

    Six samples say little of their own spread: cells that look precise by it are those
    whose samples happened to lie close together. So the cells of a part share one
    relative spread, and a cell's interval holds also where the stop rule has ended.

    The result is `frame_of` the cells in order, with `samples_us`, a list, their median
    `latency_us`, and its relative standard `error`.
    """
    samples_us = samples_by_cell(timed)
    cells = frame_of(cells_of(samples_us.reset_index()))
    median_us, error = np.empty((2, len(cells)))
    for places in cells.groupby("part").indices.values():
        arrays = list(map(np.asarray, samples_us.iloc[places]))
        median_us[places], error[places] = _medians_and_errors(arrays)
    return cells.assign(
        samples_us=samples_us.to_numpy(),
        latency_us=median_us,
        error=error,
    )


def _medians_and_errors(cells: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The median of each cell's samples, and its relative standard error.

    Both are from the pooled shape: where it is skewed, medians of few samples lie off
    its own, and are brought to it. A cell whose samples lie much further apart than
    others' has an error as much larger.
    """
    low, medians, high = np.array([np.percentile(c, [25, 50, 75]) for c in cells]).T
    relative = [_relative(c, m) for c, m in zip(cells, medians, strict=True)]
    shape = _without_far(np.concatenate(relative))
    if not len(shape):
        return medians, np.zeros(len(cells))
    apart = (high - low) / medians / max(float(np.subtract(*_quartiles(shape))), 1e-12)
    disturbed = np.where(apart > DISTURBED_IQR_RATIO, apart, 1.0)
    counts, place = np.unique([len(c) for c in cells], return_inverse=True)
    means, errors = np.array([median_of_draws(shape, n) for n in counts]).T[:, place]
    is_pooled = len(shape) >= MIN_POOLED
    shift = means - np.median(shape) if is_pooled else np.zeros(len(cells))
    return medians / (1.0 + shift), errors * disturbed


def _relative(samples: Floats, median: float) -> Floats:
    """Samples over their median, as far apart as samples of one law are.

    The median has taken one of their degrees of freedom. Of an odd number it is one of
    them, and says nothing of the spread.
    """
    relative, count = np.sort(samples) / median, len(samples)
    if count % 2:
        return np.delete(relative, count // 2)
    widened: Floats = 1.0 + (relative - 1.0) * np.sqrt(count / (count - 1))
    return widened


def _without_far(relative: Floats) -> Floats:
    """Samples over their cells' medians, without those far outside all others."""
    if not len(relative):
        return relative
    high, low = _quartiles(relative)
    reach = OUTLIER_IQRS * (high - low)
    middle = float(np.median(relative))
    return relative[np.abs(relative - middle) <= reach] if reach else relative


def _quartiles(values: Floats) -> tuple[float, float]:
    high, low = np.percentile(values, [75, 25])
    return float(high), float(low)
