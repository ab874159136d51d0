"""May this measurement become a table? Each gate says what, where, and the remedy."""

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, OK, Cell, frame_of
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.hinge import FIT_SPLIT, parts_of
from evict_profile.fit.intervals import STANDARD_ERRORS_95
from evict_profile.fit.points import features_of
from evict_profile.fit.provenance import MAX_SCALING_ERROR
from evict_profile.physics import SLOPE_RANGE, non_moe_work
from evict_profile.stats import ErrorSummary
from evict_profile.sweep.checks import remedy
from evict_profile.sweep.latency import Drift
from evict_profile.table import (
    DATASHEET,
    Gate,
    Provenance,
    measured,
)

MAX_MEDIAN_ERROR = 0.05
MAX_P90_ERROR = 0.15
MAX_TREND, MAX_STRETCH, MAX_APART = 0.03, 0.10, 0.05
"""Of a change over the run, as the interval of one session holds; between stretches,
each with a fifth of a cell's samples; and between sessions."""

WIDE_FLOOR = 4.0
"""In half-widths asked of a median. Two halves of samples that deliver what was asked
differ by up to two."""

NON_MOE_RANGE = 0.1, 100.0
"""What a forward's part outside the MoE layers may imply of the copy bandwidth: wide,
since a head may lie in a cache. A wrong unit is off by a thousand."""

MAX_HALF_WIDTH = 0.25
"""Of the 95 % interval of a cost, in the median."""

MAX_LEFT_OUT = 0.42
"""Of the samples. One of 120 sweeps on a machine at half speed a fifth of the time lost
more."""

MAX_FAILED_CELLS = 0.10
INFEASIBLE = "infeasible"


def judge(fitted: Fitted) -> tuple[Gate, ...]:
    made, stop = measured(fitted.provenance), fitted.provenance.sweep.stop
    between, held_out = fitted.validation, fitted.held_out["hinge"]
    unseen = {
        "validation": between.error,
        "held-out error": held_out.error,
        "non-MoE held-out error": fitted.non_moe_error,
    }
    of_clock = (
        drift_gate(fitted.samples.drift, fitted.samples.dropped_share),
        aa_gate(made.aa_floor, stop.relative_half_width),
    )
    return (
        union_gate(fitted),
        slope_gate(fitted),
        *([scaling_gate(made)] if made.scaling_test else []),
        *(error_gate(name, error) for name, error in unseen.items() if error),
        *([non_moe_gate(fitted)] if fitted.non_moe_error else []),
        half_width_gate(fitted.half_width),
        *(() if made.clock == DATASHEET else of_clock),
        coverage_gate(fitted.frame, fitted.points, fitted.provenance.sweep.whole),
    )


def is_good(error: ErrorSummary) -> bool:
    return error.median <= MAX_MEDIAN_ERROR and error.p90 <= MAX_P90_ERROR


def union_gate(fitted: Fitted) -> Gate:
    test = measured(fitted.provenance).union_test
    differ = bool(test["differ"])
    return _gate(
        "union test",
        differ,
        f"U={test['small_union']} and U={test['large_union']} at n={test['width']} "
        f"{'differ' if differ else 'cost the same'}",
        "time does not follow the union: check the experts kernel",
    )


def slope_gate(fitted: Fitted) -> Gate:
    """The fitted slope in U implies a bandwidth that the device can have.

    It is between the two cells of the union test that have one row an expert.
    """
    (slope_us, error_us), test = _slope_us(fitted), measured(fitted.provenance)
    if slope_us <= 0.0:
        return Gate("roofline slope", False, "cost does not rise with U: sweep anew")
    slopes = slope_us + STANDARD_ERRORS_95 * error_us * np.array([1.0, -1.0])
    bandwidth_gbps = fitted.provenance.bandwidth_gbps
    held = fitted.model.bytes_per_expert / fitted.provenance.fingerprint["tp"]
    copied = held / bandwidth_gbps / 1e3
    least, most = copied / np.maximum(slopes, slope_us / 10)
    low, high = SLOPE_RANGE
    return _gate(
        "roofline slope",
        bool(most >= low and least <= high),
        f"{slope_us:.1f} us an expert implies {copied / slope_us:.2f} of the copy "
        f"bandwidth (95 % interval {least:.2f}..{most:.2f})",
        f"outside {low}..{high}: something else than expert weights was timed; "
        "check the experts kernel and other load, and sweep anew"
        + remedy(test.union_test, test.fingerprint),
    )


def non_moe_gate(fitted: Fitted) -> Gate:
    """The rest of the model takes what reading its weights takes, within wide bounds.

    Each dense layer, and the head, may take as long as a MoE layer beside.
    """
    cell = min(parts_of(fitted.points)[1].index, key=lambda c: c.tokens)
    features = features_of(fitted.cost.shape, frame_of([cell]))
    rest_us = float(fitted.cost.non_moe.latency_us(features)[0])
    layers_us = float(fitted.cost.layers.latency_us(features)[0])
    layer_us = layers_us * fitted.cost.layer_scale / fitted.model.moe_layers
    read = non_moe_work(fitted.model, cell).bytes_moved / 1e3
    copied_us = read / fitted.provenance.bandwidth_gbps
    low, high = NON_MOE_RANGE
    most_us = copied_us / low + (fitted.model.dense_layers + 1) * layer_us
    return _gate(
        "non-MoE time",
        copied_us / high <= rest_us <= most_us,
        f"{rest_us:.0f} us outside the MoE layers, and a copy of what they read takes "
        f"{copied_us:.0f} us",
        f"allowed are {copied_us / high:.0f} to {most_us:.0f} us: check the unit of "
        "the runner's clock for its non-MoE part, and sweep anew",
    )


def scaling_gate(made: Provenance) -> Gate:
    test = made.scaling_test or {}
    return _gate(
        "layer scaling",
        abs(test["error"]) <= MAX_SCALING_ERROR,
        made.scaling,
        f"allowed are {MAX_SCALING_ERROR:.0%}: measure more layers, or sweep again "
        "on a quiet machine",
    )


def error_gate(name: str, error: ErrorSummary) -> Gate:
    return _gate(
        name,
        is_good(error),
        str(error),
        f"allowed are median {MAX_MEDIAN_ERROR:.0%} and p90 {MAX_P90_ERROR:.0%}: add "
        "grid points where residuals are large, or more samples a cell",
    )


def half_width_gate(half_width: float) -> Gate:
    return _gate(
        "half-width",
        half_width <= MAX_HALF_WIDTH,
        f"95 % intervals of costs are +-{half_width:.0%} wide in the median",
        f"allowed are {MAX_HALF_WIDTH:.0%}: see what they hold in 'evict-profile "
        "report'; sweep anew on a quieter machine, or measure more layers",
    )


def drift_gate(drift: Drift, left_out: float = 0.0) -> Gate:
    """Cells cost the same all along, and sessions of the runner nearly so.

    A change fails where its whole interval lies beyond its bound, or where no cell
    compares it. `left_out` is the share of the samples that no fit is made of.
    """
    bounds, half = (MAX_TREND, MAX_STRETCH), drift.half_width
    left = f"{left_out:.0%} of the samples, of another speed, are left out"
    judged = [(str(c), c.least, m) for c, m in zip(drift[:2], bounds, strict=True) if c]
    says = [words for words, _, _ in judged] + [left] * (left_out > 0.0)
    judged.append((f"sessions leave {half:.1%} to costs", half, MAX_APART))
    judged.append((left, left_out, MAX_LEFT_OUT))
    failed = [f"{words} (bound {most:.0%})" for words, x, most in judged if x > most]
    return _gate(
        "drift",
        not failed,
        "; ".join(failed or says),
        "the machine changed under the sweep: quiet it and run the same command with "
        "another --out",
    )


def aa_gate(floor: float, asked: float) -> Gate:
    """Samples of a cell differ, as those of any machine do; `asked` is relative.

    A wide floor fails nothing: costs rest on all cells, and their intervals hold it.
    """
    wide = (
        f", far above the {asked:.1%} asked of a median: single cells are noisy; only "
        "where the intervals of costs, which rest on all cells, are too wide for you, "
        "sweep anew on a quieter machine"
    )
    return _gate(
        "A/A floor",
        floor > 0.0,
        f"halves of the samples of a cell differ by up to {floor:.1%}"
        f"{wide if floor > WIDE_FLOOR * asked else ''}",
        "no cell was measured twice, or the runner repeats its samples: run the same "
        "sweep again, which goes on, or fix the runner and sweep anew",
    )


def coverage_gate(frame: pd.DataFrame, points: pd.DataFrame, whole: bool) -> Gate:
    cells = frame[frame["status"] != INFEASIBLE].groupby(list(CELL_FIELDS))
    ok = cells["status"].apply(lambda column: bool((column == OK).any()))
    failed = float(1.0 - ok.mean()) if len(ok) else 1.0
    parts = {*points["part"]}
    due = {"layers"} if whole else {"layers", "non_moe"}
    if failed > MAX_FAILED_CELLS:  # a cell that failed is not tried again
        remedy = (
            "'evict-profile fit RUN' says why; fix that, and sweep anew into another "
            "--out"
        )
    else:
        missing = ", ".join(sorted(due - parts))
        remedy = f"none of the {missing}; run the same sweep again, which goes on"
    passed = failed <= MAX_FAILED_CELLS and parts == due
    return _gate("coverage", passed, f"{ok.sum()} of {len(ok)} cells measured", remedy)


def _slope_us(fitted: Fitted) -> tuple[float, float]:
    test = measured(fitted.provenance).union_test
    context = int(fitted.points["context"].min())
    lone, large = (
        Cell("layers", int(str(test[n])), int(str(test[union])), context, 1, FIT_SPLIT)
        for n, union in (
            ("single_token_width", "single_token_union"),
            ("width", "large_union"),
        )
    )
    return fitted.us_per_expert(lone, large)


def _gate(name: str, passed: bool, says: str, remedy: str) -> Gate:
    return Gate(name, passed, says if passed else f"{says}; {remedy}")
