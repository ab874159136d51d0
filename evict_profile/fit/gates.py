"""May this measurement become a table? Each gate says what, where, and the mend."""

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, OK, Cell
from evict_profile.cost_model import ForwardCost
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.hinge import FIT_SPLIT
from evict_profile.fit.points import Points
from evict_profile.physics import SLOPE_RANGE
from evict_profile.stats import ErrorSummary
from evict_profile.table import Gate, measured

MAX_MEDIAN_ERROR = 0.05
MAX_P90_ERROR = 0.15
MAX_DRIFT = 0.05
MAX_FAILED_CELLS = 0.10
INFEASIBLE = "infeasible"


def judge(fitted: Fitted) -> tuple[Gate, ...]:
    """Every gate, passed or not."""
    whole = fitted.provenance.sweep.whole
    between = fitted.validation.error(fitted.cost)
    return (
        union_gate(fitted),
        slope_gate(fitted),
        *([error_gate("validation", between)] if between else []),
        error_gate("held-out error", fitted.held_out["hinge"].error),
        drift_gate(measured(fitted.provenance).drift),
        coverage_gate(fitted.frame, fitted.points, whole),
    )


def is_good(error: ErrorSummary) -> bool:
    """Whether prices are as near to measured latencies as a table's must be."""
    return error.median <= MAX_MEDIAN_ERROR and error.p90 <= MAX_P90_ERROR


def union_gate(fitted: Fitted) -> Gate:
    """Time followed the union before the sweep began."""
    test = measured(fitted.provenance).union_test
    apart = bool(test["apart"])
    return _gate(
        "union test",
        apart,
        f"U={test['small_union']} and U={test['large_union']} at n={test['width']} "
        f"{'differ' if apart else 'cost the same'}",
        "time does not follow the union: check the experts kernel",
    )


def slope_gate(fitted: Fitted) -> Gate:
    """The fitted slope in U implies a bandwidth that the device can have.

    Taken between the two cells of the union test that have one row an expert, so that
    both speak of the same points, the fit with all cells behind it. As there, a slope
    fails only where its interval lies outside.
    """
    slope_us = _slope_us(fitted, fitted.cost)
    if slope_us <= 0.0:
        return Gate("roofline slope", False, "cost does not rise with U: sweep anew")
    slopes = np.array([_slope_us(fitted, other) for other in fitted.replicates])
    bandwidth_gbps = fitted.provenance.bandwidth_gbps
    copied = fitted.model.bytes_per_expert / bandwidth_gbps / 1e3
    least, most = copied / np.percentile(np.maximum(slopes, slope_us / 10), [95, 5])
    low, high = SLOPE_RANGE
    return _gate(
        "roofline slope",
        bool(most >= low and least <= high),
        f"{slope_us:.1f} us an expert implies {copied / slope_us:.2f} of the copy "
        f"bandwidth (90 % interval {least:.2f}..{most:.2f})",
        f"outside {low}..{high}: something else than expert weights was timed; "
        "check the experts kernel and other load, and sweep anew",
    )


def error_gate(name: str, error: ErrorSummary) -> Gate:
    """Unseen cells are predicted well enough."""
    return _gate(
        name,
        is_good(error),
        str(error),
        f"allowed are median {MAX_MEDIAN_ERROR:.0%} and p90 {MAX_P90_ERROR:.0%}: add "
        "grid points where residuals are large, or more samples a cell",
    )


def drift_gate(drift: float) -> Gate:
    """Cells cost the same at the end as at the beginning."""
    return _gate(
        "drift",
        abs(drift) <= MAX_DRIFT,
        f"{drift:+.1%} from first to last third",
        "the machine changed under the sweep: sweep anew",
    )


def coverage_gate(frame: pd.DataFrame, points: Points, whole: bool) -> Gate:
    """Few cells failed, and every part of the model was measured, or it as a whole."""
    cells = frame[frame["status"] != INFEASIBLE].groupby(list(CELL_FIELDS))
    ok = cells["status"].apply(lambda column: bool((column == OK).any()))
    failed = float(1.0 - ok.mean()) if len(ok) else 1.0
    parts = {c.part for c in points.cells}
    due = {"layers"} if whole else {"layers", "non_moe"}
    if failed > MAX_FAILED_CELLS:  # a cell that failed is not tried again
        mend = (
            "'evict-profile fit' says why; mend that, and sweep anew into another --out"
        )
    else:
        missing = ", ".join(sorted(due - parts))
        mend = f"none of the {missing}; run the same sweep again, which goes on"
    passed = failed <= MAX_FAILED_CELLS and parts == due
    return _gate("coverage", passed, f"{ok.sum()} of {len(ok)} cells measured", mend)


def _slope_us(fitted: Fitted, cost: ForwardCost) -> float:
    test = measured(fitted.provenance).union_test
    context = min(c.context for c in fitted.points.cells)
    lone, large = (
        Cell("layers", int(str(test[n])), int(str(test[union])), context, 1, FIT_SPLIT)
        for n, union in (("lone_width", "lone_union"), ("width", "large_union"))
    )
    return fitted.us_per_expert(cost, lone, large)


def _gate(name: str, passed: bool, says: str, mend: str) -> Gate:
    return Gate(name, passed, says if passed else f"{says}; {mend}")
