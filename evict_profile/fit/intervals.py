"""How far costs may be off, and what one more expert, token or request costs.

Half of a 95 % interval is two standard errors, in which three errors add as squares:
noise, by refits of the bootstrap; the misfit at cells that nothing was fitted to; and
what sessions and scaled layers leave to all costs.

Residuals at the grid's levels cannot show what happens between them: a fit through the
powers of two cannot see that an engine pads all else to them. So validation cells lie
between the levels, and naturally routed ones are evaluated at the union observed.
Where these are too few, cells held out from the fit are judged as well.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import asdict

from evict_profile.cells import Cell
from evict_profile.cost_model import ForwardCost
from evict_profile.fit.hinge import MIN_SHARE, STANDARD_ERRORS_95
from evict_profile.fit.points import HeldOut
from evict_profile.stats import Floats
from evict_profile.table import MarginalCost, Slope


def misfit_of(*unseen: HeldOut) -> float:
    """Relative error, root mean square, that the noise of medians does not explain.

    The mean square of so few cells is itself uncertain: one standard error is added.
    Infinite of fewer than two cells, which show nothing.
    """
    excess = np.concatenate([[], *(cells.excess_square for cells in unseen)])
    if len(excess) < 2:
        return np.inf
    error = excess.std(ddof=1) / np.sqrt(len(excess))
    return float(np.sqrt(max(excess.mean() + error, 0.0)))


def interval(
    cost: Floats, replicates: Sequence[Floats], misfit: float = 0.0
) -> tuple[Floats, Floats]:
    """The 95 % interval of costs, each [places].

    Args:
        cost: by the fit, in any unit.
        replicates: by its bootstrap replicates.
        misfit: relative standard error that the replicates do not show.
    """
    error = np.hypot(np.std(np.stack(replicates), axis=0), misfit * cost)
    half = STANDARD_ERRORS_95 * error
    return np.maximum(cost - half, MIN_SHARE * cost), cost + half


def marginal_costs(
    cost: ForwardCost,
    replicates: Sequence[ForwardCost],
    cells: Sequence[Cell],
    misfit: float,
) -> tuple[MarginalCost, ...]:
    """Slopes of the whole model's cost, with 95 % intervals.

    The terms of a fit are one of many ways to write the same costs, since features are
    nearly collinear; differences of costs do not depend on the way.

    Args:
        cells: those that were fitted; slopes lie between the least and the most.
        misfit: relative standard error that the replicates do not show.
    """
    found = []
    for slope in _slopes(cells, cost.shape.top_k):
        us = float(slope.of(cost.latency_us))
        spread = float(np.std([slope.of(each.latency_us) for each in replicates]))
        half = STANDARD_ERRORS_95 * float(np.hypot(spread, misfit * us))
        own = {**asdict(slope), "us": us, "us_interval": (us - half, us + half)}
        found.append(MarginalCost(**own))
    return tuple(found)


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
