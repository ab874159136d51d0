"""Where cost bends: knots chosen one by one, each paid for in held-out error.

Candidates are the measured values of each axis, the captured graph widths among
them, and powers of two of the rows per expert. A knot is kept only if it lowers the
cross-validated error by more than that gain's own standard error (the one-standard-
error rule of Breiman et al., 1984, on paired cells), so that noise alone buys none.
"""

from collections.abc import Iterator

import numpy as np

from evict_profile.fit.ramps import fit_ramps, split
from evict_profile.pricing import CROWD, Features, Term
from evict_profile.stats import Floats

LAYER_TERMS = (
    *(Term(name) for name in ("one", "union", "tokens", "batch", "cache", "scores")),
    *(Term(CROWD, low, high) for low, high in ((1, 2), (2, 4), (4, 8), (8, np.inf))),
)
"""A MoE layer: launch, expert weights, dense rows, KV cache, and expert rows, which
bend from the start at powers of two: few rows are where kernels differ most, two bends
there often pay only together, and coefficients that are never negative drop the rest.
"""

HEAD_TERMS = tuple(Term(name) for name in ("one", "tokens"))
"""Embedding, norm and head: no experts, and no cache."""

DENSE_TERMS = tuple(Term(name) for name in ("batch", "cache", "scores"))
"""What attention in dense layers adds to the ends."""

MOST_KNOTS = 10
STANDARD_ERRORS = 1.0
FOLDS = 8


def choose_terms(
    base: tuple[Term, ...], features: Features, latency_us: Floats, error: Floats
) -> tuple[Term, ...]:
    """Split terms greedily while cross-validation says that it pays."""
    terms = base
    errors = cross_validated(terms, features, latency_us, error)
    for _ in range(MOST_KNOTS):
        scored = [
            (cross_validated(option, features, latency_us, error), option)
            for option in refinements(terms, features)
        ]
        if not scored:
            break
        finer, option = min(scored, key=lambda pair: float(pair[0].mean()))
        if not is_worth(errors - finer):
            break
        errors, terms = finer, option
    return terms


def is_worth(gains: Floats) -> bool:
    """Whether the mean gain over cells stands out from its standard error."""
    noise = float(gains.std(ddof=1)) / np.sqrt(len(gains))
    return bool(gains.mean() > STANDARD_ERRORS * noise)


def refinements(
    terms: tuple[Term, ...], features: Features
) -> Iterator[tuple[Term, ...]]:
    """Every way to split one term at one knot strictly inside it."""
    for position, term in enumerate(terms):
        for knot in candidate_knots(term.feature, features):
            if term.low < knot < term.high:
                yield (*terms[:position], *split(term, knot), *terms[position + 1 :])


def candidate_knots(feature: str, features: Features) -> list[float]:
    """Values at which a feature's cost may bend; none for those that must be lines."""
    if feature == CROWD:
        largest = features["rows"].max(initial=1.0)
        return [float(2**i) for i in range(int(np.log2(max(largest, 1.0))) + 1)]
    if feature not in {"tokens", "union"}:
        return []
    inner: list[float] = np.unique(features[feature])[1:-1].tolist()
    return inner


def cross_validated(
    terms: tuple[Term, ...], features: Features, latency_us: Floats, error: Floats
) -> Floats:
    """Absolute relative error of each cell when its fold is held out, [cells]."""
    count = len(latency_us)
    fold = np.arange(count) % min(FOLDS, count)
    predicted = np.empty(count)
    for number in range(fold.max() + 1):
        train, test = fold != number, fold == number
        cost = fit_ramps(terms, _rows(features, train), latency_us[train], error[train])
        predicted[test] = cost.latency_us(_rows(features, test))
    errors: Floats = np.abs(predicted / latency_us - 1.0)
    return errors


def _rows(features: Features, mask: np.ndarray) -> dict[str, Floats]:
    return {name: values[mask] for name, values in features.items()}
