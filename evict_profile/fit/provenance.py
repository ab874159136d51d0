"""What a table says of the sweep behind it: where, when, how long, and how evenly."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from msgspec import Struct

from evict_profile import __version__
from evict_profile.cells import OK, reference_mode_us, samples_by_cell
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import Count, parse
from evict_profile.stats import Floats
from evict_profile.sweep.checks import ScalingTest
from evict_profile.sweep.latency import Samples
from evict_profile.sweep.session import Opened
from evict_profile.sweep.store import Header
from evict_profile.table import DATASHEET, Provenance, Sessions

MAX_SCALING_ERROR = 0.10
"""As much as two stretches of a sweep may differ; the interval of a cost contains what
is less. Tests of two machines found +0.8 and -7.6 %."""


class _UnionTest(Struct, frozen=True):
    width: Count
    small_union: Count
    large_union: Count
    single_token_width: Count
    single_token_union: Count
    differ: bool


class _Known(Opened, frozen=True):
    union_test: _UnionTest
    scaling_test: ScalingTest | None


def check_header(header: Header, source: str) -> None:
    try:
        parse(_Known, vars(header) | header.opened, source, extra_keys=True)
    except ConfigError as error:
        fix = "put a whole copy back, or sweep anew into another --out"
        raise DataError(f"{error}; {fix}") from error


def provenance_of(header: Header, samples: Samples, cells: int) -> Provenance:
    frame, timed = samples.frame, samples.timed
    skipped = frame.loc[frame["status"] != OK, "status"].value_counts()
    drift, clock = samples.drift, header.fingerprint["clock"]
    sessions = timed["session"].nunique()
    return Provenance(
        fingerprint=header.fingerprint,
        sweep=header.sweep,
        plan_sha256=header.plan_sha256,
        samples_sha256="",
        samples=len(timed),
        cells=cells,
        skipped={str(status): int(count) for status, count in skipped.items()},
        started=_when(header.started_unix),
        finished=_when(float(timed["at_unix"].max())),
        measured_minutes=measured_minutes(timed["at_unix"].to_numpy()),
        bandwidth_gbps=header.opened["bandwidth_gbps"],
        union_test=header.union_test,
        scaling_test=header.scaling_test,
        clock=clock,
        reference_us=reference_mode_us(timed),
        aa_floor=aa_floor(samples_by_cell(timed).tolist()),
        drift=drift.trend.size,
        evict_profile=__version__,
        dtype_reason=header.opened.get("dtype_reason", ""),
        sessions=Sessions(sessions, 0.0 if clock == DATASHEET else drift.half_width),
    )


def aa_floor(by_cell: Sequence[Sequence[float]]) -> float:
    """What differs when nothing does: p95 of odd against even samples' medians.

    Of cells with four samples, or with the most that a shorter sweep took. It is 0
    where half of these cells show no difference, since no clock repeats that often.
    """
    most = max(map(len, by_cell), default=0)
    enough = max(2, min(4, most))
    pairs = [v for v in by_cell if len(v) >= enough]
    changes = [abs(np.median(v[1::2]) / np.median(v[::2]) - 1.0) for v in pairs]
    differs = bool(changes) and np.median(changes) > 0.0
    return float(np.percentile(changes, 95)) if differs else 0.0


def scaling_half_width(
    test: Mapping[str, float] | None, scale: float, alone: bool = False
) -> float:
    """Relative half-width, of 95 %, that layers scaled to all leave to every cost.

    Where `n` layers take `a + b n`, the half of them that the test scales to all errs
    by `e = a / (a + b n)`, and all of them scaled by `scale` by `e (1 - 1 / scale)`,
    `e^2` neglected. `e` is taken at the end of its interval that is further from zero.
    One layer alone allows no test, and errs by what may pass one.
    """
    ends = [test["error_low"], test["error_high"]] if test else [0.0]
    if alone:
        ends = [MAX_SCALING_ERROR]
    return (1.0 - 1.0 / scale) * max(map(abs, ends))


def measured_minutes(at_unix: Floats) -> float:
    """A gap of over a minute is an interruption, unless many samples take that long."""
    gaps_s = np.append(np.diff(np.sort(at_unix)), 0.0)
    longest_s = max(60.0, 3.0 * float(np.percentile(gaps_s, 90)))
    return round(float(gaps_s[gaps_s < longest_s].sum()) / 60.0, 2)


def _when(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")
