"""The acceptance that a table gets: the best curves over the path, and links.

Links rank nodes better, but a runtime needs the parents of nodes to follow them. Where
it does not get those, the curves serve.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.calibrate.calibrators import (
    CANDIDATES,
    USABLE,
    Curves,
    Links,
    fit_links,
)
from evict_profile.calibrate.held_out import HeldOut, HeldOutErrors, hold_out
from evict_profile.calibrate.nodes import Nodes
from evict_profile.stats import Floats
from evict_profile.workload import Acceptance, CalibrationError, LinkCurves


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The candidates compared, and the one chosen.

    Attributes:
        chosen: the usable candidate of the smallest held-out Brier score.
        curves: it, fitted to all nodes.
        links: acceptance level by level, fitted to all nodes.
        errors: held-out errors of each candidate.
    """

    held_out: HeldOut
    chosen: str
    curves: Curves
    links: Links
    errors: dict[str, HeldOutErrors]


def calibrate(nodes: Nodes) -> Calibrated:
    """Compare the candidates on prompts held out, and fit the best usable one.

    The Brier score decides, since a node's benefit is its chance, and an error in a
    likely node costs more than the same ratio in an unlikely one.

    Raises:
        TraceError: too few prompts to hold any out.
    """
    held_out = hold_out(nodes)
    chosen = min(USABLE, key=held_out.brier)
    curves = CANDIDATES[chosen](nodes)
    assert isinstance(curves, Curves), "usable candidates are curves"
    errors = held_out.errors(chosen)
    return Calibrated(held_out, chosen, curves, fit_links(nodes), errors)


def as_acceptance(
    found: Calibrated, workload: str, steps: int, continuation: Floats
) -> Acceptance:
    """What was found, as a table holds it."""
    by_depth = found.curves.acceptances[0]
    return Acceptance(
        workload=workload,
        steps=steps,
        scores=tuple(found.curves.scores.tolist()),
        acceptances=tuple(tuple(row) for row in by_depth.tolist()),
        # Rounded down: shares of siblings must not sum to more than 1.
        continuation=tuple((np.floor(continuation * 1e6) / 1e6).tolist()),
        held_out={
            "raw": _error(found.errors["raw"]),
            "calibrated": _error(found.errors[found.chosen]),
        },
        links=_as_link_curves(found.links.level),
    )


def _as_link_curves(level: Curves) -> LinkCurves:
    by_rank = level.acceptances[:, 0]
    return LinkCurves(
        scores=tuple(level.scores.tolist()),
        acceptances=tuple(tuple(row) for row in by_rank.tolist()),
    )


def _error(errors: HeldOutErrors) -> CalibrationError:
    return CalibrationError(
        ece=round(errors.ece.value, 6), brier=round(errors.brier.value, 6)
    )
