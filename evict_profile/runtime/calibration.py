"""From path probability to acceptance: a non-decreasing piecewise-linear map.

A drafter's path probabilities rank nodes well and price them badly. A map that never
decreases keeps the ranking, and so the set of the best k nodes, and mends the benefit.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

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
from evict_profile.stats import Floats
from evict_profile.table import Acceptance, ConditionalAcceptance, CostTable
from evict_profile.table.workload import check_curve, check_per_rank

Row = tuple[float, ...]


class Calibration(Struct, frozen=True, dict=True):
    """Acceptance at some scores, linear between them.

    Attributes:
        scores: path probabilities, increasing from 0 to 1.
        acceptances: share accepted at each, non-decreasing, 0 at score 0, so that
            padding earns nothing.
        per_rank: mean probability that a node's child of rank r is accepted where
            the node is; what `DecodingStep.deeper` expects of a level not yet drafted.
        conditional: acceptance given the parent, which takes the place of the rest of
            this wherever the parents of nodes are known; None where not measured.

    Raises:
        PlanError: scores, acceptances or probabilities that are not so.
    """

    scores: Row
    acceptances: Row
    per_rank: Row = ()
    conditional: ConditionalAcceptance | None = None

    @classmethod
    def of(cls, measured: Acceptance) -> "Calibration":
        """What a table measured, at work."""
        return cls(
            measured.scores,
            measured.acceptances[0],
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
            check_curve("calibration", self.scores, self.acceptances)
            check_per_rank("per_rank", self.per_rank)
        except ValueError as error:
            raise PlanError(str(error)) from error
        given = self.conditional
        if given is not None and not isinstance(given, ConditionalAcceptance):
            raise PlanError(
                f"conditional {given!r} is none; give ConditionalAcceptance"
            )

    @cached_property
    def conditional_scorer(self) -> ConditionalScorer | None:
        """What scores nodes by their parents; None where that was not measured."""
        return ConditionalScorer(self.conditional) if self.conditional else None

    def on_cpu(self, path_prob: Probabilities) -> Floats:
        """Acceptance of each node, float64, shaped as given."""
        return np.interp(path_prob, *self._knots)

    def on_device(self, device: torch.device) -> decision_gpu.WorthOf:
        """The same in tensor operations; its knots are put on the device now."""
        x, y = (torch.from_numpy(knots).to(device) for knots in self._knots)

        def calibrate(path_prob: Tensor) -> Tensor:
            score = path_prob.double().clamp(0.0, 1.0)
            right = torch.searchsorted(x, score.contiguous()).clamp(1, len(x) - 1)
            share = (score - x[right - 1]) / (x[right] - x[right - 1])
            return torch.lerp(y[right - 1], y[right], share)

        return calibrate

    @cached_property
    def _knots(self) -> tuple[Floats, Floats]:
        return np.array(self.scores), np.array(self.acceptances)


BELIEVED = ConditionalScorer(ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0),)))
"""A drafter whose probabilities are taken as they are."""


class Scoring:
    """A calibration at work, or none: then the drafter is believed.

    It scores by parents where they are known, and by the path probability otherwise.
    What it needs on a GPU is put there once, since copies in every step would cost more
    than they bring.

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
        self.curves = (self._conditional or BELIEVED).curves
        self.reads_paths = calibration is not None and self._conditional is None
        self.follows_parents = self._conditional is not None
        if calibration is not None:
            self._calibrate_on = lru_cache(None)(calibration.on_device)
        self._follow_on = lru_cache(None)(self._follow_parents_on)

    def on_cpu(self, path_prob: Probabilities, parent: NDArray[Any] | None) -> Floats:
        """Acceptance of nodes, float64 [B, N], where the drafter is not believed.

        Raises:
            PlanError: a probability is NaN or outside [0, 1], or a parent in no row.
        """
        assert self.calibration is not None, "nothing else is scored"
        if self._conditional and parent is not None:
            return self._conditional.on_cpu(path_prob, parent)
        decision_cpu.require_probabilities(path_prob)
        return self.calibration.on_cpu(path_prob)

    def on_device(
        self, device: torch.device, parent: Tensor | None
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
        return self._calibrate_on(device)

    def path_worth(self, reached: Floats) -> Floats:
        """Acceptance of nodes by their path probabilities alone."""
        assert self.calibration is not None, "nothing else reads paths"
        return self.calibration.on_cpu(reached)

    @cached_property
    def per_rank(self) -> Floats:
        """Acceptance of children by rank where their parent is, float64 [ranks].

        Raises:
            PlanError: it was not measured.
        """
        if self.calibration is None or not self.calibration.per_rank:
            raise not_measured("no acceptance per rank", self._table)
        return np.array(self.calibration.per_rank)

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
