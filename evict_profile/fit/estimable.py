"""What one more expert, token or request costs: what a fit knows whatever its terms.

The terms of a fit are one of many ways to write the same prices. With a row or more for
each activated expert, k tokens = union + all rows beyond the first, on every cell that
can be: least squares leaves these coefficients open, and the non-negative kind takes a
corner. Differences of prices do not depend on the corner where they are combinations of
the design's rows: estimable functions (Bose, 1944; Scheffe, 1959). What is none has no
number here.

Their error is that of least squares on the balanced cells, those between the levels
among them, which the fit has not seen: residuals to the fit, with the leverage taken
out of them (HC3), joined with how far these cells would move the fit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from evict_profile.cells import Cell
from evict_profile.cost_model import (
    Features,
    ForwardCost,
    HingeCost,
    Shape,
    Term,
    design,
    features_at,
)
from evict_profile.fit.hinge import (
    MAX_LEVERAGE,
    STANDARD_ERRORS_95,
    column_sizes,
    parts_of,
)
from evict_profile.fit.points import Points, features_of
from evict_profile.fit.unseen import UnseenCells
from evict_profile.stats import Floats
from evict_profile.table import MarginalCost, Slope

DEPENDENT = 1e-6
"""Columns this near, relatively, to a sum of others are that sum."""

CUT_OFF = 1e-9
"""Singular values this much smaller than the largest are rounding."""


class LeastSquares(NamedTuple):
    """A part's terms on its cells, columns levelled and rows over their errors.

    Attributes:
        terms: what the columns are.
        matrix: float64 [cells, terms].
        inverse: its pseudo-inverse: what terms take from cells, float64 [terms, cells].
        residual: of the fit, in standard errors, float64 [cells].
        unit: what a unit of each column is, float64 [terms].
    """

    terms: tuple[Term, ...]
    matrix: Floats
    inverse: Floats
    residual: Floats
    unit: Floats

    @classmethod
    def of(
        cls, cost: HingeCost, features: Features, points: Points, scale: float = 1.0
    ) -> "LeastSquares":
        """Of the points at these features; the part counts `scale` times."""
        fitted_us = cost.latency_us(features)
        precision = 1.0 / (fitted_us * points.relative_error)
        matrix = design(cost.terms, features) * precision[:, None]
        size = column_sizes(matrix)
        inverse = np.asarray(np.linalg.pinv(matrix / size, rcond=CUT_OFF), np.float64)
        residual = (points.latency_us - fitted_us) * precision
        return cls(cost.terms, matrix / size, inverse, residual, scale / size)

    def change(self, slope: Slope, shape: Shape) -> Floats:
        """What a slope takes of each term, float64 [terms]."""

        def row(**place: float) -> Floats:
            at = {axis: np.array([value]) for axis, value in place.items()}
            terms: Floats = design(self.terms, features_at(shape, **at))[0]
            return terms

        return slope.of(row) * self.unit

    def knows(self, change: Floats) -> bool:
        """Whether it is a combination of the cells."""
        missing = change - change @ self.inverse @ self.matrix
        return bool(np.abs(missing).max() <= DEPENDENT * np.abs(change).max())

    def error(self, change: Floats) -> float:
        """Standard error of it, joined with how far the cells would move it."""
        share = change @ self.inverse
        leverage = np.einsum("ct,tc->c", self.matrix, self.inverse)
        alone = self.residual / (1.0 - np.minimum(leverage, MAX_LEVERAGE))
        return float(np.hypot(np.linalg.norm(share * alone), share @ self.residual))


def marginal_costs(
    cost: ForwardCost, points: Points, unseen: UnseenCells, reach: float = 0.0
) -> tuple[MarginalCost, ...]:
    """The slopes of a forward's price that its cells determine, with 95 % intervals.

    Args:
        cost: the fit.
        points: what it was made of.
        unseen: cells between the levels, which it was not made of.
        reach: relative half-width of what all prices share.
    """
    layers, rest = parts_of(points)
    seen = features_of(cost.shape, layers.cells)
    features = {name: np.append(seen[name], unseen.features[name]) for name in seen}
    both = layers.and_those(unseen.points)
    parts = (
        LeastSquares.of(cost.layers, features, both, cost.layer_scale),
        LeastSquares.of(cost.non_moe, features_of(cost.shape, rest.cells), rest),
    )
    found = []
    for slope in _slopes(layers.cells, cost.shape.top_k):
        changes = [part.change(slope, cost.shape) for part in parts]
        pairs = list(zip(parts, changes, strict=True))
        if all(part.knows(change) for part, change in pairs):
            us = float(slope.of(cost.price))
            errors = [part.error(change) for part, change in pairs]
            half = math.hypot(STANDARD_ERRORS_95 * math.hypot(*errors), reach * us)
            found.append(
                MarginalCost(**asdict(slope), us=us, us_interval=(us - half, us + half))
            )
    return tuple(found)


def collinear(cost: ForwardCost, points: Points) -> tuple[str, ...]:
    """Sums of terms that are equal on every cell: "8 tokens = union + ...".

    What a cost holds of either side is not known.
    """
    return tuple(
        equation
        for part, own in zip((cost.layers, cost.non_moe), parts_of(points), strict=True)
        if len(own)
        for equation in _equations(part.terms, features_of(cost.shape, own.cells))
    )


def _slopes(cells: Sequence[Cell], top_k: int) -> Iterator[Slope]:
    """What a forward may do one more of, from the least measured to the most."""
    batches, contexts, unions = (
        sorted({float(getattr(cell, axis)) for cell in cells})
        for axis in ("batch", "context", "union")
    )
    alone = sorted({float(c.tokens) for c in cells if c.batch == batches[0]})
    few, some, many = alone[0], alone[len(alone) // 2], alone[-1]
    requests = max(few, batches[-1])
    least, most = max(few, unions[0] / top_k), min(many, unions[-1] / top_k)

    def place(tokens: float, union: float, **other: float) -> dict[str, float]:
        possible = min(union, unions[-1], top_k * tokens)
        there = {"tokens": tokens, "union": possible, "context": contexts[0]}
        return {**there, "batch": batches[0], **other}

    def new(tokens: float, **other: float) -> dict[str, float]:
        return place(tokens, top_k * tokens, **other)

    for name, axis, start, end in (
        ("expert in each layer", "union", place(many, unions[0]), new(many)),
        ("token on experts of its own", "tokens", new(least), new(most)),
        ("token on activated experts", "tokens", new(some), place(many, top_k * some)),
        ("token of context", "context", new(few), new(few, context=contexts[-1])),
        ("request", "batch", new(requests), new(requests, batch=batches[-1])),
    ):
        if end[axis] > start[axis]:
            yield Slope(name, axis, start, end)


def _equations(terms: Sequence[Term], features: Features) -> Iterator[str]:
    """One for each term that is a sum of those before it."""
    size = column_sizes(design(terms, features))
    matrix = design(terms, features) / size
    kept: list[int] = []
    for column, values in enumerate(matrix.T):
        share = np.linalg.lstsq(matrix[:, kept], values, rcond=CUT_OFF)[0]
        if np.abs(values - matrix[:, kept] @ share).max() > DEPENDENT:
            kept.append(column)
            continue
        whole = np.zeros(len(terms))
        whole[kept], whole[column] = share, -1.0
        yield _equation(terms, whole / size)


def _equation(terms: Sequence[Term], whole: Floats) -> str:
    """A sum of terms that is zero, as two sums that are equal."""
    counts = np.abs(whole) > DEPENDENT * np.abs(whole).max()
    shares: Floats = np.where(counts, whole / np.abs(whole[counts]).min(), 0.0)
    sides: tuple[list[str], list[str]] = ([], [])
    for term, share in _merged(terms, shares.round(6)):
        times = f"{abs(share):g} " if abs(share) != 1.0 else ""
        sides[int(share > 0.0)].append(times + _named(term))
    return " = ".join(" + ".join(side) or "0" for side in sorted(sides, key=len))


def _merged(terms: Sequence[Term], shares: Floats) -> list[tuple[Term, float]]:
    """Terms that count, hinges end to end that count alike as one."""
    found: list[tuple[Term, float]] = []
    for term, share in sorted(zip(terms, shares.tolist(), strict=True)):
        last, times = found[-1] if found else (None, 0.0)
        if last and (last.feature, last.high, times) == (term.feature, term.low, share):
            found[-1] = (Term(term.feature, last.low, term.high), share)
        elif share:
            found.append((term, share))
    return found


def _named(term: Term) -> str:
    return term.feature if (term.low, term.high) == (0.0, np.inf) else str(term)
