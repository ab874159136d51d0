"""From path probability to acceptance: non-decreasing piecewise-linear maps.

A drafter's path probabilities rank nodes well and price them badly. One map that never
decreases keeps the ranking, and so the set of the best k nodes, and mends the benefit.
Drafters get worse with depth by more than their scores say, and a map for each depth
mends that too. It can change the ranking, but not lift a child above its parent: no
map lies above that of the depth before.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime import decision_cpu, decision_gpu
from evict_profile.runtime.conditional import ConditionalScorer
from evict_profile.runtime.decision_cpu import Probabilities
from evict_profile.runtime.prices import not_measured
from evict_profile.stats import Floats, Ints
from evict_profile.table import Acceptance, ConditionalAcceptance, CostTable
from evict_profile.table.workload import check_by_depth, check_per_rank

Depths = NDArray[Any]
Row = tuple[float, ...]

GRID = 1 << 30
"""Maps by depth are interpolated in whole numbers of 1 / GRID. Rounded floats could put
a child above its parent by a last digit, and the kept set would not be closed."""


class _Grid(NamedTuple):
    """Maps by depth in units of 1 / GRID, int64.

    Where a part between two scores starts and ends and how wide it is, each [parts];
    acceptance where it starts and how far it rises, each [depths * parts].
    """

    starts: Ints
    ends: Ints
    widths: Ints
    lows: Ints
    rises: Ints


class Calibration(Struct, frozen=True, dict=True):
    """Acceptance at some scores, linear between them.

    Attributes:
        scores: path probabilities, increasing from 0 to 1.
        acceptances: share accepted at each, non-decreasing, 0 at score 0, so that
            padding earns nothing. Either one row, or one for each depth from 1, the
            last of which serves all deeper nodes; no row rises above the one before.
        per_rank: mean probability that a node's child of rank r is accepted where
            the node is; what `DecodingStep.deeper` expects of a level not yet drafted.
        conditional: acceptance given the parent, which takes the place of the rest of
            this wherever the parents of nodes are known; None where not measured.

    Raises:
        PlanError: scores, acceptances or probabilities that are not so.
    """

    scores: Row
    acceptances: Row | tuple[Row, ...]
    per_rank: Row = ()
    conditional: ConditionalAcceptance | None = None

    @classmethod
    def of(cls, measured: Acceptance) -> "Calibration":
        """What a table measured, at work."""
        return cls(
            measured.scores,
            measured.acceptances,
            measured.per_rank,
            measured.conditional,
        )

    @classmethod
    def by(cls, conditional: ConditionalAcceptance | None) -> "Calibration | None":
        """Conditional acceptance alone; without it the drafter is believed."""
        if conditional is None:
            return None
        return cls((0.0, 1.0), (0.0, 1.0), conditional=conditional)

    def __post_init__(self) -> None:
        try:
            check_by_depth("calibration", self.scores, self.acceptances)
            check_per_rank("per_rank", self.per_rank)
        except ValueError as error:
            raise PlanError(str(error)) from error
        given = self.conditional
        if given is not None and not isinstance(given, ConditionalAcceptance):
            raise PlanError(
                f"conditional {given!r} is none; give ConditionalAcceptance"
            )

    @cached_property
    def rows(self) -> Floats:
        """Acceptance by depth and score, float64 [depths, scores]."""
        return np.atleast_2d(np.array(self.acceptances, dtype=np.float64))

    @cached_property
    def conditional_scorer(self) -> ConditionalScorer | None:
        """What scores nodes by their parents; None where that was not measured."""
        return ConditionalScorer(self.conditional) if self.conditional else None

    @property
    def by_depth(self) -> bool:
        """Whether nodes of different depth are accepted differently."""
        return len(self.rows) > 1

    def on_cpu(self, path_prob: Probabilities, depth: Depths | None = None) -> Floats:
        """Acceptance of each node, float64, shaped as given.

        Args:
            path_prob: floats of any shape.
            depth: depth of each node from 1, whole numbers shaped alike; 0 for
                padding. Without it the mean of the rows serves every node: it errs on
                both sides, where any one row would err on one.
        """
        if depth is None or not self.by_depth:
            return np.interp(path_prob, self._knots, self._mean)
        grid = self._grid
        inside = np.minimum(np.maximum(path_prob, 0.0), 1.0)
        score = (inside * GRID).astype(np.int64)
        part = grid.ends.searchsorted(score)
        row = np.minimum(np.maximum(depth, 1), len(self.rows)) - 1
        at = row * len(grid.ends) + part
        after = score - grid.starts.take(part)
        risen = grid.rises.take(at) * after // grid.widths.take(part)
        acceptance: Floats = (grid.lows.take(at) + risen) / GRID
        return acceptance

    def on_device(
        self, device: torch.device
    ) -> Callable[[Tensor, Tensor | None], Tensor]:
        """The same in tensor operations; its knots are put on the device now."""
        whole = self._one_map(device)
        if not self.by_depth:
            return whole
        starts, ends, widths, lows, rises = (
            torch.from_numpy(each).to(device) for each in self._grid
        )

        def calibrate(path_prob: Tensor, depth: Tensor | None = None) -> Tensor:
            if depth is None:
                return whole(path_prob, None)
            score = (path_prob.double().clamp(0.0, 1.0) * GRID).long().contiguous()
            part = torch.searchsorted(ends, score)
            at = (depth.long().clamp(1, len(self.rows)) - 1) * len(ends) + part
            rise = rises[at] * (score - starts[part])
            risen = rise.div(widths[part], rounding_mode="floor")
            return (lows[at] + risen).double() / GRID

        return calibrate

    def _one_map(
        self, device: torch.device
    ) -> Callable[[Tensor, Tensor | None], Tensor]:
        x, y = (
            torch.from_numpy(knots.copy()).to(device)
            for knots in (self._knots, self._mean)
        )

        def calibrate(path_prob: Tensor, depth: Tensor | None = None) -> Tensor:
            score = path_prob.double().clamp(0.0, 1.0)
            right = torch.searchsorted(x, score.contiguous()).clamp(1, len(x) - 1)
            share = (score - x[right - 1]) / (x[right] - x[right - 1])
            return torch.lerp(y[right - 1], y[right], share)

        return calibrate

    @cached_property
    def _knots(self) -> Floats:
        return np.array(self.scores, dtype=np.float64)

    @cached_property
    def _grid(self) -> "_Grid":
        x, rows = (np.rint(v * GRID).astype(np.int64) for v in (self._knots, self.rows))
        # Knots closer than the grid make a part without width, which holds no score.
        widths = np.maximum(np.diff(x), 1)
        lows, rises = rows[:, :-1].ravel(), np.diff(rows, axis=1).ravel()
        return _Grid(x[:-1].copy(), x[1:].copy(), widths, lows, rises)

    @cached_property
    def _mean(self) -> Floats:
        mean: Floats = self.rows.mean(axis=0)
        return mean


BELIEVED = ConditionalScorer(ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0),)))
"""A drafter whose probabilities are taken as they are."""


class Scoring:
    """A calibration at work, or none: then the drafter is believed.

    It tells acceptance by parents where they are known, by depth where depths are, and
    by the mean of all depths otherwise, which a plan then says. What it needs on a GPU
    is put there once, since copies in every step would cost more than they bring.

    Attributes:
        curves: what a child's probability given its parent is read at; see
            `ConditionalScorer.curves`.
        reads_paths: whether the product of what they say is calibrated again.
        follows_parents: whether nodes are scored by parents where those are known.
    """

    def __init__(
        self,
        calibration: Calibration | None,
        table: CostTable | None,
        levels: int | None = None,
    ) -> None:
        """Parents are followed as deep as the table's engine drafts, or `levels`."""
        self.calibration = calibration
        drafting = table.drafting if table else None
        self._levels = drafting.max_depth if drafting else levels
        self._table = table
        self._conditional = calibration.conditional_scorer if calibration else None
        self._by_depth = calibration is not None and calibration.by_depth
        self.curves = (self._conditional or BELIEVED).curves
        self.reads_paths = calibration is not None and self._conditional is None
        self.follows_parents = self._conditional is not None
        if calibration is not None:
            self._calibrate_on = lru_cache(None)(calibration.on_device)
        self._follow_on = lru_cache(None)(self._follow_parents_on)

    def on_cpu(
        self,
        path_prob: Probabilities,
        depth: NDArray[Any] | None,
        parent: NDArray[Any] | None,
    ) -> Floats:
        """Acceptance of nodes, float64 [B, N], where the drafter is not believed.

        Raises:
            PlanError: a probability is NaN or outside [0, 1], or a parent in no row.
        """
        assert self.calibration is not None, "nothing else is scored"
        if self._conditional and parent is not None:
            return self._conditional.on_cpu(path_prob, parent)
        decision_cpu.require_probabilities(path_prob)
        return self.calibration.on_cpu(path_prob, depth)

    def on_device(
        self, device: torch.device, depth: Tensor | None, parent: Tensor | None
    ) -> decision_gpu.WorthOf | None:
        """The same in tensor operations, from path probabilities that come later.

        Raises:
            PlanError: no depth is known to follow parents to.
        """
        if self.calibration is None:
            return None
        if self._conditional and parent is not None:
            follow = self._follow_on(device)
            return lambda path_prob: follow(path_prob, parent)
        calibrate = self._calibrate_on(device)
        return lambda path_prob: calibrate(path_prob, depth)

    def path_worth(self, reached: Floats, level: int) -> Floats:
        """Acceptance of a level's nodes by their path probabilities alone."""
        assert self.calibration is not None, "nothing else reads paths"
        return self.calibration.on_cpu(reached, np.array(level))

    @cached_property
    def per_rank(self) -> Floats:
        """Acceptance of children by rank where their parent is, float64 [ranks].

        Raises:
            PlanError: it was not measured.
        """
        if self.calibration is None or not self.calibration.per_rank:
            raise not_measured("no acceptance per rank", self._table)
        return np.array(self.calibration.per_rank)

    def caveats(self, depth: object | None, parent: object | None) -> tuple[str, ...]:
        """In what a plan made with these is not scored as well as it could be."""
        by_links = self._conditional is not None and parent is not None
        if self._by_depth and depth is None and not by_links:
            return ("calibrated for the mean of all depths: none was given",)
        return ()

    def _follow_parents_on(
        self, device: torch.device
    ) -> Callable[[Tensor, Tensor], Tensor]:
        assert self._conditional is not None, "nothing else follows parents"
        if self._levels is None:
            raise PlanError(
                f"{self._table.path if self._table else 'no table'}: no time of "
                "drafting is known, hence no depth to follow parents to on a GPU; give "
                "path_prob.cpu() and parent.cpu(), or leave parents out"
            )
        return self._conditional.on_device(device, self._levels)
