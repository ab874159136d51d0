"""Gates on public rows: whether they can cost an engine.

They find benchmarks that keep weights in the cache, kernels without tuning, and wrong
labels, by the rows' own numbers.
"""

from collections.abc import Iterator
from functools import cache
from itertools import count

import numpy as np

from evict_profile.fit.gates import is_good
from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.pairs import KernelKey, pairs
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.table import Gate

SLOPE_RANGE = (0.4, 1.15)
"""Implied bandwidth over the data sheet's. Few layers lie at 0.3 to 0.4; below are
kernels that time something else than reading weights, and rows that are labelled with
fewer bits than they read."""

MAX_MISFIT = 0.3
"""Standard deviation of rows about a fit that did not see them."""


def expert_gates(experts: ExpertRows) -> Iterator[Gate]:
    """The first gate is needed by the rest."""
    yield _gate(
        "identified union",
        experts.identified,
        experts.origin,
        "; three unions and a plateau are needed, or two usable layers of the kernel: "
        "this shard fits into the L2 cache or has too few experts",
    )
    if experts.identified:
        yield slope_gate(experts)
        yield _misfit_gate(experts.held_out())


def passes(experts: ExpertRows) -> bool:
    return all(gate.passed for gate in expert_gates(experts))


def by_bytes(source: Source, own: ExpertRows) -> ExpertRows:
    layers = _usable(source, own.pair._replace(shape=(0, 0, 0, 0), tp=0))
    others = tuple(layer for layer in layers if layer.pair != own.pair)
    return ExpertRows(own.pair, own.rows, own.peak_gbps, others)


@cache
def _usable(source: Source, kernel: KernelKey) -> tuple[ExpertRows, ...]:
    every = (
        ExpertRows.of(source, pair)
        for pair in pairs(source, kernel.gpu, kernel.engine)
        if pair._replace(shape=kernel.shape, tp=kernel.tp) == kernel
    )
    return tuple(filter(passes, every))


def misfit(experts: ExpertRows) -> float:
    """Standard deviation of unseen rows beyond that of rows with compared tables."""
    errors = experts.held_out()
    tidy = experts.others is None and is_good(_summary(errors))
    return 0.0 if tidy else _deviation(errors)


def slope_gate(experts: ExpertRows) -> Gate:
    """The slope in U is the time to read one expert's weights."""
    low, high = SLOPE_RANGE
    share = experts.bandwidth_share
    why = (
        "more than memory gives: fewer experts ran than the union says"
        if share > high
        else "something else than reading weights of this type was timed"
    )
    passed = low <= share <= high
    # As many digits as it takes not to round to the other side of a bound.
    digits = next(n for n in count(2) if (low <= round(share, n) <= high) == passed)
    says = f"an expert implies {share:.{digits}f} of peak bandwidth"
    return _gate("slope", passed, says, f", outside {low}..{high}: {why}")


def _misfit_gate(errors: Floats) -> Gate:
    deviation = _deviation(errors)
    says = f"{_summary(errors)}, one standard deviation {deviation:.1%}"
    why = f"; allowed are {MAX_MISFIT:.0%}: time follows more than union and tokens"
    return _gate("held-out rows", deviation <= MAX_MISFIT, says, why)


def _deviation(errors: Floats) -> float:
    return float(np.sqrt(np.square(errors).mean()))


def _summary(errors: Floats) -> ErrorSummary:
    return summarise_errors(1.0 + errors, np.ones(len(errors)))


def _gate(name: str, passed: bool, says: str, why: str) -> Gate:
    return Gate(name, passed, says if passed else says + why)
