"""The cost of a forward: a non-negative sum of hinges over what the forward does.

A hinge is clip(x - low, 0, high - low): flat, rising, flat. A sum of hinges end to end
with coefficients >= 0 is every non-decreasing piecewise-linear function with those
knots, convex or not. More work never costs less.

The physics behind the terms: a layer's experts cost the sum over activated experts of
g(rows of that expert), where g jumps at the first row (the weights are read) and then
rises with more rows, in steps at the kernel's tiles. With rows shared out evenly that
is U * g(tokens * k / U), so "expert_rows" terms are U times a hinge in rows per expert.

numpy alone, because the fit and the serving process compute costs with the same code.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from evict_profile.stats import Bools, Floats

Features = Mapping[str, Floats]
EXPERT_ROWS = "expert_rows"
FEATURES = (
    *("one", "union", "tokens", "width", "rows", "batch", "cache", "reads", "scores"),
    EXPERT_ROWS,
)


class CostShape(Struct, frozen=True):
    top_k: int
    sliding_window: int
    sliding_every: int
    others: tuple[tuple[float, int], ...] = ()
    """Of layers of other kinds: their share, and the tokens that each sees."""

    @property
    def recurs(self) -> bool:
        return any(not window for _, window in self.others)

    def seen_context(self, context: Floats) -> Floats:
        """Past tokens that a layer attends to, mean over layers of all kinds."""
        seen = context
        if self.sliding_window:
            share = 1.0 / self.sliding_every
            windowed = np.minimum(context, self.sliding_window)
            seen = share * windowed + (1.0 - share) * context
        if self.others:
            seen = (1.0 - sum(share for share, _ in self.others)) * seen
            for share, window in self.others:
                seen = seen + share * np.minimum(context, window)
        return seen


def features_at(
    shape: CostShape, tokens: Floats, union: Floats, context: Floats, batch: Floats
) -> Features:
    """What latency can depend on, each float64, shaped as the arguments are.

    union: experts whose weights are read. tokens: rows of every dense product; width:
    those of one request. rows: mean rows of one activated expert, tokens * k / U.
    cache: cached tokens that are read, over all requests. scores: pairs of a tree's
    token and a cached one. reads: the geometric mean of both.
    """
    seen = shape.seen_context(context)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(union > 0, tokens * shape.top_k / union, 0.0)
    return {
        "one": np.ones(np.shape(tokens)),
        "union": union,
        "tokens": tokens,
        "width": tokens / batch,
        "rows": rows,
        "batch": batch,
        "cache": batch * seen,
        "reads": np.sqrt(batch * tokens) * seen,
        "scores": tokens * seen,
    }


class Term(Struct, frozen=True, order=True):
    """One hinge of one feature; `expert_rows` multiplies one in rows by the union."""

    feature: str
    low: float = 0.0
    high: float = float("inf")

    def values(self, features: Features) -> Floats:
        """The term at each cell, float64 [cells]."""
        if self.feature == EXPERT_ROWS:
            return features["union"] * self._hinge(features["rows"])
        return self._hinge(features[self.feature])

    def _hinge(self, x: Floats) -> Floats:
        return np.clip(x - self.low, 0.0, self.high - self.low)

    def __str__(self) -> str:
        return f"{self.feature}[{self.low:g}..{self.high:g}]"


class HingeCost(Struct, frozen=True):
    """Latency as a non-negative sum of terms, in microseconds."""

    terms: tuple[Term, ...]
    us_per_unit: Floats

    def latency_us(self, features: Features) -> Floats:
        return design(self.terms, features) @ self.us_per_unit


def design(terms: Sequence[Term], features: Features) -> Floats:
    return np.stack([term.values(features) for term in terms], axis=1)


class ForwardCost(Struct, frozen=True, dict=True):
    """C(n, U, context, batch): measured layers, scaled to all of them, and the rest.

    `layer_scale` is MoE layers of the model over measured ones.
    """

    shape: CostShape
    layers: HingeCost
    non_moe: HingeCost
    layer_scale: float

    def latency_us(
        self,
        tokens: ArrayLike,
        union: ArrayLike,
        context: ArrayLike,
        batch: ArrayLike,
    ) -> Floats:
        """Latency of a forward in microseconds, float64, shaped as all four broadcast.

        `tokens` are verified in all, roots included; `union` is distinct experts a
        layer.
        """
        given = (tokens, union, context, batch)
        places = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in given))
        features = features_at(self.shape, *places)
        terms = self._stacked
        values = np.stack([features[name] for name in terms.features], axis=-1)
        values = np.clip(values - terms.low, 0.0, terms.span)
        values[..., terms.by_union] *= places[1][..., None]
        cost: Floats = values @ terms.us_per_unit
        return cost

    @cached_property
    def _stacked(self) -> "_Stacked":
        terms = (*self.layers.terms, *self.non_moe.terms)
        low = np.array([term.low for term in terms])
        scaled = self.layer_scale * self.layers.us_per_unit
        names = (t.feature if t.feature != EXPERT_ROWS else "rows" for t in terms)
        return _Stacked(
            tuple(names),
            low,
            np.array([term.high for term in terms]) - low,
            np.array([t.feature == EXPERT_ROWS for t in terms], dtype=np.bool_),
            np.concatenate((scaled, self.non_moe.us_per_unit)),
        )


class _Stacked(NamedTuple):
    features: tuple[str, ...]
    low: Floats
    span: Floats
    by_union: Bools
    us_per_unit: Floats


def padded_tokens(asked: ArrayLike, batch: int, capture_sizes: Sequence[int]) -> Floats:
    """Tokens that run when these are asked for: roots, then whole captured widths."""
    tokens = np.maximum(asked, batch).astype(np.float64)
    if not capture_sizes:
        return tokens
    widths = np.array(capture_sizes)
    index = np.searchsorted(widths, np.ceil(tokens / batch))
    padded: Floats = widths[np.minimum(index, len(widths) - 1)].astype(np.float64)
    return padded * batch


def activated_union(
    tokens: Floats, batch: float, union: Floats, by_batch: Mapping[int, Floats]
) -> Floats:
    """Experts a layer that so many tokens of a batch activate, float64 [places].

    The nearest measured batch in ratio serves; beyond its end it rises as `union`.
    """
    anywhere = np.interp(tokens, np.arange(len(union)), union)
    if not by_batch:
        return anywhere
    curve = by_batch[min(by_batch, key=lambda known: abs(math.log(known / batch)))]
    last = len(curve) - 1
    here = np.interp(tokens, np.arange(len(curve)), curve)
    at_end = np.interp(last, np.arange(len(union)), union)
    beyond = curve[last] + np.maximum(anywhere - at_end, 0.0)
    # Never past the most that was seen: two curves that meet must not add up to it.
    most = max(union.max(), curve.max())
    return np.where(tokens > last, np.minimum(beyond, most), here)
