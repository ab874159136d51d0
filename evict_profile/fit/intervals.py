"""How far costs may be off.

Half of a 95 % interval is two standard errors, in which three errors add as squares:
noise, by the residuals of the fit; the misfit at cells that nothing was fitted to; and
what sessions and scaled layers leave to all costs.

Residuals at the grid's levels cannot show what happens between them: a fit through the
powers of two cannot see that an engine pads all else to them. So validation cells lie
between the levels, and naturally routed ones are evaluated at the union observed.
Where these are too few, cells held out from the fit are judged as well.
"""

import numpy as np

from evict_profile.fit.points import HeldOut
from evict_profile.stats import Floats

STANDARD_ERRORS_95 = 2.0
"""Half of a 95 % interval, at the sixty or more degrees of freedom of a sweep."""
MIN_SHARE = 0.05
"""An interval stays above this share of its cost: never negative."""


def misfit_of(*unseen: HeldOut) -> float:
    """Relative error, root mean square, that the noise of medians does not explain.

    One standard error is added; fewer than two cells show nothing and give infinity.
    """
    excess = np.concatenate([[], *(cells.excess_square for cells in unseen)])
    if len(excess) < 2:
        return np.inf
    error = excess.std(ddof=1) / np.sqrt(len(excess))
    return float(np.sqrt(max(excess.mean() + error, 0.0)))


def interval(cost: Floats, noise: Floats, misfit: float = 0.0) -> tuple[Floats, Floats]:
    """The 95 % interval of costs, each [places].

    `noise` is the standard error of each in its unit; `misfit` a relative one, of all.
    """
    half = STANDARD_ERRORS_95 * np.hypot(noise, misfit * cost)
    return np.maximum(cost - half, MIN_SHARE * cost), cost + half
