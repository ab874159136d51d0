"""Scores of nodes: how likely each is accepted, by path probability or by its parent.

A monotone curve over path probabilities keeps the drafter's ranking and corrects the
benefit. Conditional acceptance ranks better: at equal probability given the parent, a
drafter's best child is accepted more often than its third. Each rank has a curve, and a
node's score is the product of their values along its path. No factor exceeds 1, so the
best nodes are closed under ancestors.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evict_profile.acceptance import (
    Acceptance,
    ConditionalAcceptance,
    check_curves,
    check_per_rank,
)
from evict_profile.errors import ConfigError
from evict_profile.runtime import checks, decision, scan_numpy
from evict_profile.runtime.scan_numpy import LARGEST_PROBABILITY, TINY
from evict_profile.stats import Floats, Ints

Row = tuple[float, ...]
INITIAL_NODES = 128


class ConditionalScorer:
    """Scores nodes by curves of conditional acceptance.

    Attributes:
        curves: float64 [1 + 2 ranks, scores]: the scores; acceptance by rank, whose
            last row serves all ranks beyond; and the slopes to the next score.
    """

    def __init__(self, measured: ConditionalAcceptance) -> None:
        x, y = np.array(measured.scores), np.array(measured.acceptances)
        slopes = np.diff(y) / np.diff(x)
        self.curves: Floats = np.vstack((x, y, np.pad(slopes, ((0, 0), (0, 1)))))

    def on_cpu(self, path_prob: NDArray[Any], parent: NDArray[Any]) -> Floats:
        shown = np.ascontiguousarray(path_prob, np.float64)
        checks.require_probabilities(shown)
        scores, above = np.empty(shown.shape), np.ascontiguousarray(parent, np.int64)
        shape = (*shown.shape, len(self.curves) // 2)
        given = (shown, above, self.curves, scores, *shape)
        if not (
            decision.kernels.score_by_parent(*given)
            or scan_numpy.score_by_parent(*given)
        ):
            raise ConfigError(
                f"parent holds a node outside 0..{parent.shape[1] - 1}; give the index "
                "of each node's parent in its row, and -1 under the root"
            )
        return scores

    def on_device(
        self, device: torch.device, levels: int
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """`on_cpu` in tensor operations of fixed shapes, for trees of so many levels.

        Nothing is refused without a sync: deeper nodes score 0, and a parent outside
        its row is taken for its last node.
        """
        curves = torch.from_numpy(self.curves).to(device)
        knots, ranks = curves[0], len(curves) // 2

        def scores_of(path_prob: Tensor, parent: Tensor) -> Tensor:
            nodes = path_prob.shape[1]
            above = torch.where(parent < 0, nodes, parent.clamp(max=nodes - 1)).long()
            own = path_prob.double()
            share = own / _with_root(own).gather(1, above).clamp(min=TINY)
            share = share.clamp(max=1.0).contiguous()
            row = 1 + _ranks_on_device(path_prob, above).clamp(max=ranks - 1)
            part = torch.searchsorted(knots, share, right=True) - 1
            rise = curves[ranks + row, part] * (share - knots[part])
            factor = (curves[row, part] + rise).clamp(max=1.0)
            scores = torch.zeros_like(own)
            for _ in range(levels):
                scores = factor * _with_root(scores).gather(1, above)
            return scores

        return scores_of


def _ranks_on_device(path_prob: Tensor, above: Tensor) -> Tensor:
    best = torch.argsort(path_prob, dim=1, descending=True, stable=True)
    family, again = torch.sort(above.gather(1, best), dim=1, stable=True)
    order = best.gather(1, again)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    begins = torch.ones_like(family, dtype=torch.bool)
    begins[:, 1:] = family[:, 1:] != family[:, :-1]
    first = torch.where(begins, place, 0).cummax(dim=1).values
    return torch.empty_like(order).scatter_(1, order, place - first)


def _with_root(values: Tensor) -> Tensor:
    """The root's 1 behind each row: [B, N + 1]."""
    return torch.nn.functional.pad(values, (0, 1), value=1.0)


IDENTITY = ConditionalScorer(ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0),))).curves


class Calibration(Struct, frozen=True, dict=True):
    """Acceptance at some scores, linear between them.

    Attributes:
        scores: path probabilities, increasing from 0 to 1.
        acceptances: share accepted at each, non-decreasing, 0 at score 0.
        per_rank: probability that a child of rank r is accepted where its parent is.
        conditional: acceptance given the parent, used where parents are known.

    Raises:
        ConfigError: scores, acceptances or probabilities that are not so.
    """

    scores: Row
    acceptances: Row
    per_rank: Row = ()
    conditional: ConditionalAcceptance | None = None

    @classmethod
    def of(cls, measured: Acceptance) -> "Calibration":
        return cls(
            measured.scores,
            measured.acceptances[0],
            measured.per_rank,
            measured.conditional,
        )

    @classmethod
    def by(cls, conditional: ConditionalAcceptance | None) -> "Calibration | None":
        if conditional is None:
            return None
        return cls((0.0, 1.0), (0.0, 1.0), conditional=conditional)

    def __post_init__(self) -> None:
        try:
            check_curves("calibration", self.scores, self.acceptances)
            check_per_rank("per_rank", self.per_rank)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        given = self.conditional
        if given is not None and not isinstance(given, ConditionalAcceptance):
            raise ConfigError(
                f"conditional {given!r} is none; give ConditionalAcceptance"
            )

    @cached_property
    def by_parent(self) -> ConditionalScorer | None:
        return ConditionalScorer(self.conditional) if self.conditional else None

    @cached_property
    def rank_chances(self) -> Floats:
        return np.array(self.per_rank)

    def on_cpu(
        self, path_prob: NDArray[Any], parent: NDArray[Any] | None = None
    ) -> Floats:
        """Acceptance of each node, float64, shaped as given; by parents if known."""
        if self.by_parent and parent is not None:
            return self.by_parent.on_cpu(path_prob, parent)
        shown = np.ascontiguousarray(path_prob, np.float64)
        found, shape = np.empty(shown.shape), (1, shown.size, 1, shown.size, 1)
        row, prob = found.reshape(1, -1), shown.reshape(1, 1, -1)
        if decision.kernels.score_level(row, 0, 0, prob, None, self._curve, *shape):
            raise checks.no_probability("path_prob")
        return found

    def along_path(self, path_prob: NDArray[Any]) -> Floats:
        found: Floats = np.interp(path_prob, *self._curve[:2])
        return found

    @cached_property
    def _curve(self) -> Floats:
        by_path = ConditionalAcceptance(self.scores, (self.acceptances,))
        return ConditionalScorer(by_path).curves


class GrowingTrees:
    """The trees of a batch, roots excluded, scored level by level as they are drafted.

    `nodes` of each request, padding included, are in the order of `scores`.
    """

    levels = nodes = _last_level = 0

    def __init__(self, batch: int, calibration: Calibration | None = None) -> None:
        self._batch, self._curves, self._along_path = batch, IDENTITY, None
        # The product along each node's path, and last its score.
        self._trees = [np.empty((batch, INITIAL_NODES))]
        if calibration and calibration.by_parent:
            self._curves = calibration.by_parent.curves
        elif calibration:
            self._along_path = calibration.along_path
            self._trees.append(np.empty((batch, INITIAL_NODES)))

    def grow(self, prob: ArrayLike, parent: ArrayLike | None) -> None:
        shares = self._shares_of(prob)
        families, children = shares.shape[1:]
        is_root = not self.levels and parent is None and families == 1
        places = None if is_root else self._places_of(parent, families)
        begin, end = self.nodes, self.nodes + families * children
        if end > self._trees[0].shape[1]:
            more = ((0, 0), (0, 2 * end - self._trees[0].shape[1]))
            self._trees = [np.pad(trees, more) for trees in self._trees]
        trees, curves = self._trees[0], self._curves
        wrong = decision.kernels.score_level(
            trees, self._last_level, begin, shares, places, curves,
            *trees.shape, families, children, len(curves) // 2,
        )  # fmt: skip
        if wrong == "parent":
            raise self._no_parents(np.asarray(parent), families)
        if wrong:
            raise checks.no_probability("prob")
        if self._along_path:
            self._trees[1][:, begin:end] = self._along_path(trees[:, begin:end])
        self._last_level, self.nodes = begin, end
        self.levels += 1

    @property
    def scores(self) -> Floats:
        """Acceptance of each node, float64 [B, nodes]."""
        return self._trees[-1][:, : self.nodes]

    def another_pays(self, per_rank: Floats, *objective: Any) -> bool:
        """Whether the next level does, by `level_pays` of the kernels: EAGLE-2 and -3
        draft children of as many nodes as there are ranks.
        """
        trees, begin, end = self._trees[-1], self._last_level, self.nodes
        more = min(end - begin, len(per_rank)) * len(per_rank)
        room = np.empty(self._batch * (end + more))
        given = (trees, begin, end, per_rank, *objective, room, *trees.shape)
        found: bool | None = decision.kernels.level_pays(*given)
        return scan_numpy.level_pays(*given) if found is None else found

    def _shares_of(self, prob: ArrayLike) -> Floats:
        try:
            found = np.asarray(prob)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"prob cannot be read on the host: {error}") from error
        if found.ndim != 3 or len(found) != self._batch or found.dtype.kind != "f":
            raise ConfigError(
                f"prob is {found.dtype} {list(found.shape)}; give floats "
                f"[{self._batch}, parents, children], each given its parent"
            )
        return np.ascontiguousarray(found, np.float64)

    def _places_of(self, parent: ArrayLike | None, families: int) -> Ints:
        found = np.asarray(parent)
        places = found.shape == (self._batch, families) and found.dtype.kind in "iu"
        if not (self.levels and places):
            raise self._no_parents(found, families)
        return np.ascontiguousarray(found, np.int64)

    def _no_parents(self, found: NDArray[Any], families: int) -> ConfigError:
        return ConfigError(
            f"parent is {found.dtype} {list(found.shape)} for "
            f"{[self._batch, families]} families; give the place of each family's "
            "parent in the level before, and None at the first level, whose one family "
            "is the root's"
        )


def clip_to_parents(path_prob: Floats, parent: NDArray[Any]) -> Floats:
    """Path probabilities [B, N] of which none is above its parent's."""
    parent = np.ascontiguousarray(parent, np.int64)
    if not decision.kernels.rises(path_prob, parent, *path_prob.shape):
        return path_prob
    checks.require_probabilities(path_prob)
    batch, nodes = path_prob.shape
    above = np.where(path_prob > 0.0, parent, -1)
    if ((above < -1) | (above >= np.arange(nodes))).any():
        raise ConfigError(
            f"parent holds a node outside 0..{nodes - 1}, or one behind its child; "
            "give the index of each node's parent in its row, and -1 under the root"
        )
    bounded = np.pad(path_prob, ((0, 0), (0, 1)), constant_values=1.0)
    for node in range(nodes):
        most = bounded[np.arange(batch), above[:, node]]
        bounded[:, node] = np.minimum(bounded[:, node], most)
    bounded = np.ascontiguousarray(bounded[:, :-1])
    if (path_prob > LARGEST_PROBABILITY * bounded).any():  # by more than rounding
        raise ConfigError(
            "path_prob holds a node that is more probable than its parent; give path "
            "products, not conditional probabilities"
        )
    return bounded
