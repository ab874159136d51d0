"""Where a table's numbers come from: a sweep, or public measurements of its parts."""

from typing import Any

from msgspec import Struct

from evict_profile.config.sweep import SweepSpec
from evict_profile.errors import DataError
from evict_profile.records import Amount, Finite, NotNegative, Positive
from evict_profile.table.key import COMPOSED, Caveats

MEASURED, DATASHEET = "measured", "datasheet"
"""The origin of swept costs, and the clock of costs that a data sheet implies."""

COMPUTED = (
    "costs are computed from a data sheet, not measured: bytes over bandwidth and "
    "operations over rate, a lower bound; kernels of Qwen3-30B-A3B on H100 and H200 "
    "take 1.3 to 1.7 times as long"
)


class Sessions(Struct, frozen=True, omit_defaults=True):
    """`half_width` is the relative 95 % interval they add; assumed for one session."""

    count: int
    half_width: NotNegative

    def __str__(self) -> str:
        if self.count == 1:
            return (
                "1 session; variation between sessions was not measured, and "
                f"{self.half_width:.1%} is assumed (to measure it, set 'sessions: 6' "
                "in the sweep)"
            )
        return (
            f"{self.count} sessions; variation between sessions leaves every cost "
            f"uncertain by {self.half_width:.1%}"
        )


class Origin(Struct, frozen=True, tag_field="origin"):
    fingerprint: dict[str, Any]
    samples_sha256: str
    samples: int
    cells: int
    evict_profile: str

    @property
    def caveats(self) -> Caveats:
        return ()

    @property
    def without_kernels(self) -> tuple[str, ...] | None:
        """Kinds of layers that are costed without their own kernels; None for all."""
        return ()

    @property
    def reference_us(self) -> float | None:
        return None


class Swept(Origin, frozen=True):
    """`bandwidth_gbps` is of a copy or of the data sheet."""

    sweep: SweepSpec
    bandwidth_gbps: Positive


class Provenance(Swept, frozen=True, tag=MEASURED):
    """A sweep that measured every cell.

    Attributes:
        clock: what `latency_us` means on this device.
        reference_us: time of the reference work, to which latencies are scaled.
        aa_floor: p95 over cells of the relative difference between the medians of odd
            and even samples.
        drift: relative change of latency over the run, linear; in older tables, of the
            last third against the first.
        sessions: None in older tables, whose intervals exclude them.
    """

    plan_sha256: str
    skipped: dict[str, int]
    started: str
    finished: str
    measured_minutes: NotNegative
    union_test: dict[str, Any]
    scaling_test: dict[str, Any] | None
    clock: str
    reference_us: NotNegative | None
    aa_floor: NotNegative
    drift: Finite
    dtype_reason: str = ""
    sessions: Sessions | None = None

    @property
    def caveats(self) -> Caveats:
        return (COMPUTED,) if self.clock == DATASHEET else ()

    @property
    def without_kernels(self) -> tuple[str, ...] | None:
        return None if self.clock == DATASHEET else ()

    @property
    def noise(self) -> float:
        return self.aa_floor + abs(self.drift)

    @property
    def scaling(self) -> str:
        test = self.scaling_test
        if test is None:
            taken = self.fingerprint.get("layers") == 1
            error = "intervals take 10 %" if taken else "no interval contains its error"
            return f"no scaling test was run, so {error}"
        return (
            "half of the layers measured, scaled to all of them, missed by "
            f"{test['error']:+.1%} (95 % interval {test['error_low']:+.1%}.."
            f"{test['error_high']:+.1%})"
        )


class CompositionError(Struct, frozen=True):
    """Standard deviations of composed over served times: of a step, of its growth."""

    step: Positive
    growth: Positive


class Composition(Swept, frozen=True, tag=COMPOSED):
    """Cells that were added up from public measurements of their parts.

    Attributes:
        files: SHA-256 of each file that was read, by its path in the package.
        rows_used, rows_dropped: of the experts' kernel; the reasons with their counts.
        router: how the rows' unions were computed, and why so.
        l2_mb: cache by which rows count as read from memory.
        substituted_versions: of the engine, whose rows replace missing ones.
        stand_ins: what replaces sizes, data types and layers without rows.
        without_kernels: kinds of layers without rows; None (all) in older tables.
        not_included: what a step runs and no row covers.
        near: layers of the kernel whose rows stand for the experts'.
        misfit: of the experts' unseen rows, where it adds to the error.
    """

    package: str
    licence: str
    attribution: str
    files: dict[str, str]
    rows_used: int
    rows_dropped: dict[str, int]
    router: str
    l2_mb: Amount | NotNegative
    substituted_versions: dict[str, str]
    not_included: tuple[str, ...]
    error: CompositionError
    other_kernels: tuple[str, ...] = ()
    stand_ins: dict[str, str] = {}
    without_kernels: tuple[str, ...] | None = None
    near: tuple[str, ...] = ()
    misfit: NotNegative = 0.0

    @property
    def noise(self) -> float:
        return self.error.growth

    @property
    def caveats(self) -> Caveats:
        return (
            "costs are composed from public rows, not measured: against served times "
            f"one standard deviation is {self.error.step:.0%} of a step, and "
            f"{self.error.growth:.0%} of its growth with batch",
            *self._experts,
            *self._kernel,
            *self._parts,
        )

    @property
    def _parts(self) -> Caveats:
        near = [f"{of}: {stand_in}" for of, stand_in in self.stand_ins.items()]
        note = f"rows near by stand in where there are none ({'; '.join(near)})"
        return (note,) if near else ()

    @property
    def _experts(self) -> Caveats:
        if self.near:
            first, *others = self.near
            more = f" and {len(others)} other layers" if others else ""
            return (
                f"experts are not measured at this size: their cost follows from "
                f"their bytes and from {first}{more} of the same kernel, which errs "
                f"by {self.misfit:.0%} where each is left out",
            )
        note = f"rows of the experts scatter by {self.misfit:.0%} about their fit"
        return (f"{note}, which is in the error",) if self.misfit else ()

    @property
    def _kernel(self) -> Caveats:
        if not self.other_kernels:
            return ()
        others = ", ".join(self.other_kernels)
        return (
            f"experts are of the kernel {self.fingerprint['moe_backend']}, the "
            f"fastest with usable rows; also measured: {others}",
        )


def measured(origin: Origin) -> Provenance:
    if isinstance(origin, Provenance):
        return origin
    raise DataError(
        "this table was composed from public rows, so there is no sweep of its to "
        "repeat; measure the device with: evict-profile sweep"
    )
