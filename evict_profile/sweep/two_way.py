"""Levels of cells and effects of blocks: a robust fit of log latency.

log latency = cell + block        (Huber's M-estimator, 1964)
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from evict_profile.cells import CELL_FIELDS
from evict_profile.stats import Floats, Ints

HUBER, MAX_ITERATIONS, TOLERANCE, RIDGE = 1.345, 30, 1e-6, 1e-9
MAD_TO_SIGMA, LEAST_INSIDE, LEAST_SPREAD = 1.4826, 0.3, 1e-9


class TwoWay(NamedTuple):
    """Levels of cells [cells], what blocks add to them [blocks], and its covariance.

    The first block adds nothing.
    """

    level: Floats
    effect: Floats
    covariance: Floats


def two_way(samples: pd.DataFrame, block: Ints) -> TwoWay:
    log_us = np.log(samples["latency_us"].to_numpy())
    cell = np.asarray(samples.groupby(list(CELL_FIELDS)).ngroup(), dtype=np.int64)
    fitted = cell.max() + block.max() + 1
    weights, effect = np.ones(len(cell)), np.zeros(block.max() + 1)
    for _ in range(MAX_ITERATIONS):
        before, normal = effect, _Normal(cell, block, weights)
        level, effect = normal.solve(log_us)
        rest = log_us - level[cell] - effect[block]
        reach = HUBER * sigma(rest, fitted)
        if np.abs(effect - before).max() < TOLERANCE:
            break
        weights = np.minimum(1.0, reach / np.maximum(np.abs(rest), LEAST_SPREAD))
    inside = np.clip(rest, -reach, reach)
    inside_share = max(float((inside == rest).mean()), LEAST_INSIDE)
    variance = float(inside @ inside) / max(len(cell) - fitted, 1) / inside_share**2
    covariance = variance * _Normal(cell, block, np.ones(len(cell))).inverse()
    return TwoWay(level, effect, covariance)


class _Normal:
    """Normal equations by cell and block; blocks are eliminated (Woodbury)."""

    def __init__(self, cell: Ints, block: Ints, weights: Floats) -> None:
        self._cell, self._block, self._weights = cell, block, weights
        count = self._count = sparse.csr_array((weights, (cell, block)))
        self._of_cell: Floats = count.sum(axis=1)
        self._of_block: Floats = count.sum(axis=0)[1:] + RIDGE
        self._share = count[:, 1:] / self._of_block
        through_blocks = (self._share @ count[:, 1:].T).toarray()
        self._cells = np.asarray(np.diag(self._of_cell) - through_blocks, np.float64)

    def solve(self, values: Floats) -> tuple[Floats, Floats]:
        """Levels of the cells, and what blocks add to them: 0 of the first."""
        total = np.bincount(self._cell, self._weights * values)
        pull = np.bincount(self._block, self._weights * values)
        pull = (pull - self._count.T @ (total / self._of_cell))[1:]
        cells = np.linalg.solve(self._cells, np.asarray(self._share @ pull))
        effect = np.append(0.0, pull / self._of_block + self._share.T @ cells)
        return (total - self._count @ effect) / self._of_cell, effect

    def inverse(self) -> Floats:
        """What effects covary by for a noise of 1, float64 [blocks, blocks]."""
        by_cells = np.linalg.solve(self._cells, self._share.toarray())
        inverse = np.diag(1.0 / self._of_block) + self._share.T @ by_cells
        return np.pad(inverse, ((1, 0), (1, 0)))


def sigma(rest: Floats, fitted: int) -> float:
    """Standard deviation of noise; residuals that are 0 by the fit are left out."""
    larger = np.sort(np.abs(rest))[min(fitted, len(rest) - 1) :]
    return max(MAD_TO_SIGMA * float(np.median(larger)), LEAST_SPREAD)
