"""May this measurement become a table? Each gate says what, where, and the mend."""

import numpy as np
import pandas as pd

from evict_profile.cells import OK, Cell
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.hinge import FIT_SPLIT, CostModel, Points
from evict_profile.physics import SLOPE_RANGE
from evict_profile.stats import ErrorSummary
from evict_profile.table import Gate

MOST_MEDIAN_ERROR = 0.05
MOST_P90_ERROR = 0.15
MOST_DRIFT = 0.05
MOST_FAILED_CELLS = 0.10
INFEASIBLE = "infeasible"
SLOPE_CELLS = ("lone_width", "lone_union", "width", "large_union")


def judge(fitted: Fitted) -> tuple[Gate, ...]:
    """Every gate, passed or not."""
    whole = fitted.provenance.sweep.whole
    return (
        union_gate(fitted),
        slope_gate(fitted),
        held_out_gate(fitted.held_out["hinge"].error),
        drift_gate(fitted.provenance.drift),
        coverage_gate(fitted.frame, fitted.points, whole),
    )


def is_good(error: ErrorSummary) -> bool:
    """Whether prices are as near to measured latencies as a table's must be."""
    return error.median <= MOST_MEDIAN_ERROR and error.p90 <= MOST_P90_ERROR


def union_gate(fitted: Fitted) -> Gate:
    """Time followed the union before the sweep began."""
    test = fitted.provenance.union_test
    apart = bool(test["apart"])
    unions = f"U={test['small_union']} and U={test['large_union']}"
    says = f"{unions} at n={test['width']} {'differ' if apart else 'cost the same'}"
    mend = "" if apart else "; time does not follow the union: check the experts kernel"
    return Gate("union test", apart, says + mend)


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
    passed = bool(most >= low and least <= high)
    says = (
        f"{slope_us:.1f} us an expert implies {copied / slope_us:.2f} of the copy "
        f"bandwidth (90 % interval {least:.2f}..{most:.2f})"
    )
    mend = (
        f"; outside {low}..{high}: something else than expert weights was timed; "
        "check the experts kernel and other load, and sweep anew"
    )
    return Gate("roofline slope", passed, says if passed else says + mend)


def _slope_us(fitted: Fitted, cost: CostModel) -> float:
    test = {name: fitted.provenance.union_test[name] for name in SLOPE_CELLS}
    lone_n, lone_union, n, union = (int(str(value)) for value in test.values())
    context = min(c.context for c in fitted.points.cells)
    lone = Cell("layers", lone_n, lone_union, context, 1, FIT_SPLIT)
    return cost.us_per_expert(lone, Cell("layers", n, union, context, 1, FIT_SPLIT))


def held_out_gate(error: ErrorSummary) -> Gate:
    """Unseen cells are predicted well enough."""
    passed = is_good(error)
    mend = (
        ""
        if passed
        else (
            f"; allowed are median {MOST_MEDIAN_ERROR:.0%} and p90 "
            f"{MOST_P90_ERROR:.0%}: add grid points where residuals are "
            "large, or more samples a cell"
        )
    )
    return Gate("held-out error", passed, f"{error}{mend}")


def drift_gate(drift: float) -> Gate:
    """Cells cost the same at the end as at the beginning."""
    passed = abs(drift) <= MOST_DRIFT
    mend = "" if passed else "; the machine changed under the sweep: sweep anew"
    return Gate("drift", passed, f"{drift:+.1%} from first to last third{mend}")


def coverage_gate(frame: pd.DataFrame, points: Points, whole: bool) -> Gate:
    """Few cells failed, and every part of the model was measured, or it as a whole."""
    cells = frame[frame["status"] != INFEASIBLE].groupby(
        ["part", "width", "union", "context", "batch", "split"]
    )
    ok = cells["status"].apply(lambda column: bool((column == OK).any()))
    failed = float(1.0 - ok.mean()) if len(ok) else 1.0
    parts = {c.part for c in points.cells}
    due = {"layers"} if whole else {"layers", "non_moe"}
    passed = failed <= MOST_FAILED_CELLS and parts == due
    says = f"{int(ok.sum())} of {len(ok)} cells measured"
    if passed:
        return Gate("coverage", True, says)
    if failed > MOST_FAILED_CELLS:  # a cell that failed is not tried again
        mend = (
            "'evict-profile fit' says why; mend that, and sweep anew into another --out"
        )
    else:
        missing = ", ".join(sorted(due - parts))
        mend = f"none of the {missing}; run the same sweep again, which goes on"
    return Gate("coverage", False, f"{says}; {mend}")
