"""The price of a forward: a non-negative sum of ramps over what the forward does.

A ramp is clip(x - low, 0, high - low): flat, rising, flat. A sum of ramps end to end
with coefficients >= 0 is every non-decreasing piecewise-linear function with those
knots, convex or not. More work never costs less.

The physics behind the terms: a layer's experts cost the sum over woken experts of
g(rows of that expert), where g jumps at the first row (the weights are read) and then
rises with more rows, in steps at the kernel's tiles. With rows shared out evenly that
is U * g(tokens * k / U), so "crowd" terms are U times a ramp in rows per expert.

numpy alone, because the fit and the serving process price with the same code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = Mapping[str, Floats]
CROWD = "crowd"


@dataclass(frozen=True)
class Shape:
    """What of a model the features of a forward depend on."""

    top_k: int
    sliding_window: int
    sliding_every: int

    def seen_context(self, context: Floats) -> Floats:
        """Past tokens that a layer attends to, mean over full and windowed layers."""
        if not self.sliding_window:
            return context
        share = 1.0 / self.sliding_every
        windowed = np.minimum(context, self.sliding_window)
        return share * windowed + (1.0 - share) * context


def features_at(
    shape: Shape, tokens: Floats, union: Floats, context: Floats, batch: Floats
) -> Features:
    """What latency can depend on, each float64 [places], as the arguments are.

    union: experts whose weights are read. tokens: rows of every dense product.
    rows: mean rows of one woken expert, tokens * k / U. cache: cached tokens that are
    read, over all requests. scores: pairs of a tree's token and a cached one.
    """
    seen = shape.seen_context(context)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(union > 0, tokens * shape.top_k / union, 0.0)
    return {
        "one": np.ones(len(tokens)),
        "union": union,
        "tokens": tokens,
        "rows": rows,
        "batch": batch,
        "cache": batch * seen,
        "scores": tokens * seen,
    }


@dataclass(frozen=True, order=True)
class Term:
    """One ramp of one feature; `crowd` multiplies a ramp in rows by the union."""

    feature: str
    low: float = 0.0
    high: float = float("inf")

    def values(self, features: Features) -> Floats:
        """The term at each cell, float64 [cells]."""
        if self.feature == CROWD:
            return features["union"] * self._ramp(features["rows"])
        return self._ramp(features[self.feature])

    def _ramp(self, x: Floats) -> Floats:
        return np.clip(x - self.low, 0.0, self.high - self.low)

    def __str__(self) -> str:
        return f"{self.feature}[{self.low:g}..{self.high:g}]"


@dataclass(frozen=True)
class RampCost:
    """Latency as a non-negative sum of terms, in microseconds."""

    terms: tuple[Term, ...]
    us_per_unit: Floats

    def latency_us(self, features: Features) -> Floats:
        """Predicted latency of each cell, float64 [cells]."""
        return design(self.terms, features) @ self.us_per_unit


def design(terms: Sequence[Term], features: Features) -> Floats:
    """The matrix of term values, float64 [cells, terms]."""
    return np.stack([term.values(features) for term in terms], axis=1)


@dataclass(frozen=True)
class ForwardCost:
    """C(n, U, context, batch): measured layers, scaled to all of them, and the ends."""

    shape: Shape
    layers: RampCost
    ends: RampCost
    layer_scale: float

    def step_cost_us(
        self, tokens: Floats, union: Floats, batch: float, context: float
    ) -> Floats:
        """Price of verifying `tokens` in all at these unions, float64 [places]."""
        size = np.ones(len(tokens))
        places = (tokens, union, context * size, batch * size)
        features = features_at(self.shape, *places)
        layers_us, ends_us = (
            part.latency_us(features) for part in (self.layers, self.ends)
        )
        return self.layer_scale * layers_us + ends_us


def padded_tokens(
    asked: NDArray[np.int64], batch: int, ladder: Sequence[int]
) -> Floats:
    """Tokens that really run when these are asked for: roots, then whole rungs."""
    tokens = np.maximum(asked, batch).astype(np.float64)
    if not ladder:
        return tokens
    rungs = np.array(ladder)
    index = np.searchsorted(rungs, np.ceil(tokens / batch))
    widths: Floats = rungs[np.minimum(index, len(rungs) - 1)].astype(np.float64)
    return widths * batch


def grown_union(
    tokens: Floats, batch: float, union: Floats, by_batch: Mapping[int, Floats]
) -> Floats:
    """Experts a layer that so many tokens of a batch wake, float64 [places].

    The growth of the nearest batch in ratio that was measured. Beyond its end it rises
    as `union` does, which is the growth where no batch was measured.
    """
    anywhere = np.interp(tokens, np.arange(len(union)), union)
    if not by_batch:
        return anywhere
    own = by_batch[min(by_batch, key=lambda known: abs(math.log(known / batch)))]
    last = len(own) - 1
    here = np.interp(tokens, np.arange(len(own)), own)
    at_end = np.interp(last, np.arange(len(union)), union)
    beyond = own[last] + np.maximum(anywhere - at_end, 0.0)
    # Never past the most that was seen: two growths that meet must not add up to it.
    most = max(union.max(), own.max())
    return np.where(tokens > last, np.minimum(beyond, most), here)
