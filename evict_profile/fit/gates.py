"""May this measurement become a table? Each gate says what, where, and the mend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, OK, Cell, with_latency
from evict_profile.config import ModelSpec
from evict_profile.fit.hinge import FIT_SPLIT, CostModel, Points
from evict_profile.physics import SLOPE_RANGE
from evict_profile.stats import ErrorSummary
from evict_profile.table import Gate

MOST_HELD_OUT_MEDIAN = 0.05
MOST_HELD_OUT_P90 = 0.15
MOST_DRIFT = 0.05
MOST_FAILED_CELLS = 0.10
INFEASIBLE = "infeasible"
SLOPE_CELLS = ("lone_width", "lone_union", "width", "large_union")


@dataclass(frozen=True)
class Evidence:
    """All that the gates look at."""

    model: ModelSpec
    cost: CostModel
    replicates: Sequence[CostModel]
    points: Points
    held_out: ErrorSummary
    frame: pd.DataFrame
    union_test: Mapping[str, object]
    bandwidth_gbps: float
    drift: float
    whole: bool


def judge(evidence: Evidence) -> tuple[Gate, ...]:
    """Every gate, passed or not."""
    return (
        union_gate(evidence),
        slope_gate(evidence),
        held_out_gate(evidence.held_out),
        drift_gate(evidence.drift),
        coverage_gate(evidence.frame, evidence.points, evidence.whole),
    )


def union_gate(evidence: Evidence) -> Gate:
    """Time followed the union before the sweep began."""
    test = evidence.union_test
    apart = bool(test["apart"])
    unions = f"U={test['small_union']} and U={test['large_union']}"
    says = f"{unions} at n={test['width']} {'differ' if apart else 'cost the same'}"
    mend = "" if apart else "; time does not follow the union: check the experts kernel"
    return Gate("union test", apart, says + mend)


def slope_gate(evidence: Evidence) -> Gate:
    """The fitted slope in U implies a bandwidth that the device can have.

    Taken between the two cells of the union test that have one row an expert, so that
    both speak of the same points, the fit with all cells behind it. As there, a slope
    fails only where its interval lies outside.
    """
    slope_us = _slope_us(evidence, evidence.cost)
    if slope_us <= 0.0:
        return Gate("roofline slope", False, "cost does not rise with U: sweep anew")
    slopes = np.array([_slope_us(evidence, other) for other in evidence.replicates])
    copied = evidence.model.bytes_per_expert / evidence.bandwidth_gbps / 1e3
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


def _slope_us(evidence: Evidence, cost: CostModel) -> float:
    test = {name: evidence.union_test[name] for name in SLOPE_CELLS}
    lone_n, lone_union, n, union = (int(str(value)) for value in test.values())
    context = min(c.context for c in evidence.points.cells)
    lone = Cell("layers", lone_n, lone_union, context, 1, FIT_SPLIT)
    return cost.us_per_expert(lone, Cell("layers", n, union, context, 1, FIT_SPLIT))


def held_out_gate(error: ErrorSummary) -> Gate:
    """Unseen cells are predicted well enough."""
    passed = error.median <= MOST_HELD_OUT_MEDIAN and error.p90 <= MOST_HELD_OUT_P90
    mend = (
        ""
        if passed
        else (
            f"; allowed are median {MOST_HELD_OUT_MEDIAN:.0%} and p90 "
            f"{MOST_HELD_OUT_P90:.0%}: add grid points where residuals are "
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
    due = {"layers"} if whole else {"layers", "ends"}
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


def drift_of(frame: pd.DataFrame) -> float:
    """Relative change of latency, last third of the rounds against the first.

    The median over every cell measured in both thirds, each against itself. The
    anchor is always among them; with it alone, a few samples would decide.
    """
    timed = with_latency(frame)
    share = timed["round"].rank(pct=True)
    by = list(CELL_FIELDS)
    first, last = (
        timed[third].groupby(by)["latency_us"].median()
        for third in (share <= 1.0 / 3.0, share > 2.0 / 3.0)
    )
    changes = (last / first).dropna()
    return float(changes.median() - 1.0) if len(changes) else 0.0


def aa_floor(history: Mapping[Cell, Sequence[float]]) -> float:
    """What differs when nothing does: p95 of odd against even samples' medians."""
    pairs = [v for v in history.values() if len(v) >= 4]
    changes = [abs(np.median(v[1::2]) / np.median(v[::2]) - 1.0) for v in pairs]
    return float(np.percentile(changes, 95)) if changes else 0.0
