"""Where a table's numbers come from: a sweep, or public measurements of its parts."""

from typing import Any

from msgspec import Struct

from evict_profile.config.sweep import SweepSpec
from evict_profile.errors import DataError
from evict_profile.records import Amount, Finite, NotNegative, Positive
from evict_profile.table.key import COMPOSED, SERVED, Caveats

MEASURED, DATASHEET = "measured", "datasheet"
"""The origin of swept costs; and the clock of those that a device's promises imply."""

COMPUTED = (
    "costs are computed from a data sheet, not measured: bytes over bandwidth and "
    "operations over rate, a lower bound; kernels of Qwen3-30B-A3B on H100 and H200 "
    "take 1.3 to 1.7 times as long"
)


class Sessions(Struct, frozen=True, omit_defaults=True):
    """Sessions of the runner, which differ as a whole for reasons no sample shows.

    `half_width` is that of the relative 95 % interval which this leaves to every cost,
    and which the intervals of costs contain. It is assumed where there was one session.
    """

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
    """Where the numbers come from, as far as all tables can say.

    `fingerprint` holds the facts that the table's key is made of, and others.
    """

    fingerprint: dict[str, Any]
    samples_sha256: str
    samples: int
    cells: int
    evict_profile: str

    @property
    def caveats(self) -> Caveats:
        return ()


class Swept(Origin, frozen=True):
    """Cells of a grid.

    With `sweep` and the samples a table can be fitted again. The memory's
    `bandwidth_gbps` is of a copy or of the data sheet.
    """

    sweep: SweepSpec
    bandwidth_gbps: Positive


class Provenance(Swept, frozen=True, tag=MEASURED):
    """A sweep that measured every cell.

    Attributes:
        clock: what `latency_us` means on this device.
        reference_us: the reference work at the speed that the machine had most, to
            which latencies are brought; `mean_reference_us` is its mean.
        aa_floor: p95 over cells of the relative difference between the medians of a
            cell's odd and even samples.
        drift: relative change of latency over the run, as a straight line; in older
            tables, of the last third against the first.
        dtype_reason: why the sweep ran in its dtype, where the runner chose.
        sessions: None in older tables, whose intervals hold nothing of them.
        new_graph_us: time beyond its cost of a forward of another width than the last,
            of an engine that builds a graph for it then.
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
    new_graph_us: NotNegative | None = None
    mean_reference_us: NotNegative | None = None

    @property
    def caveats(self) -> Caveats:
        """A data sheet says what a device promises, and nothing was timed."""
        return (COMPUTED,) if self.clock == DATASHEET else ()

    @property
    def slow_times(self) -> float:
        """What work took on average, over what it takes at the speed that was usual."""
        if not self.mean_reference_us or not self.reference_us:
            return 1.0
        return self.mean_reference_us / self.reference_us

    @property
    def noise(self) -> float:
        """Relative difference that two measurements of one cell may have."""
        return self.aa_floor + abs(self.drift)

    @property
    def scaling(self) -> str:
        """What is known of costs that were scaled from fewer layers."""
        test = self.scaling_test
        if test is None:
            taken = self.fingerprint.get("layers") == 1
            known = "intervals take 10 %" if taken else "no interval contains its error"
            return f"no scaling test was run, so {known}"
        return (
            "half of the layers measured, scaled to all of them, missed by "
            f"{test['error']:+.1%} (95 % interval {test['error_low']:+.1%}.."
            f"{test['error_high']:+.1%})"
        )


class CompositionError(Struct, frozen=True):
    """Standard deviations of composed over served times: of a step, and of its growth
    from one batch to another."""

    step: Positive
    growth: Positive


class Composition(Swept, frozen=True, tag=COMPOSED):
    """Cells that were added up from public measurements of their parts.

    Attributes:
        package: name and version of the package that holds the rows.
        files: SHA-256 of each file that was read, by its path in the package.
        rows_used, rows_dropped: of the experts' kernel; the reasons with their counts.
        router: how the rows' unions were computed, and why so.
        l2_mb: cache by which rows count as read from memory.
        substituted_versions: of the engine, whose rows stand in for missing ones.
        not_included: what a step runs and no row covers.
        fixed_us: time of every step beside its parts; 0 where nobody gave it, which
            `fixed_from` says.
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
    fixed_us: NotNegative
    fixed_from: str
    error: CompositionError

    @property
    def reference_us(self) -> None:
        return None

    @property
    def noise(self) -> float:
        """The error of composed growth stands where measurements have a noise floor."""
        return self.error.growth

    @property
    def caveats(self) -> Caveats:
        """No cost of it was measured."""
        return (
            "costs are composed from public rows, not measured: against served times "
            f"one standard deviation is {self.error.step:.0%} of a step, and "
            f"{self.error.growth:.0%} of its growth with batch",
            self.fixed_caveat,
        )

    @property
    def fixed_caveat(self) -> str:
        """What is known of time beside the parts; overheads take its place."""
        return f"fixed time of a step: {self.fixed_from}"


class ServedSteps(Origin, frozen=True, tag=SERVED):
    """Whole steps of a server, timed from outside: no union was known.

    Attributes:
        servers: what each server that was probed stated of itself.
        half_width: relative, of the 95 % interval of a setting, in the median.
        notes: what the probes could not show.
    """

    servers: tuple[dict[str, Any], ...]
    half_width: NotNegative
    notes: tuple[str, ...]

    @property
    def reference_us(self) -> None:
        """No reference work ran."""
        return None

    @property
    def noise(self) -> float:
        """What two probes of one setting may differ by."""
        return self.half_width

    @property
    def caveats(self) -> Caveats:
        """What marks every cost of the table."""
        whole = "costs are whole steps of a server, drafting and host within"
        return (whole, *self.notes)


def measured(origin: Origin) -> Provenance:
    """The sweep behind a table; a composed one has none."""
    if isinstance(origin, Provenance):
        return origin
    raise DataError(
        "this table was composed from public rows or probed from outside, so there is "
        "no sweep of its to repeat; measure the device with: evict-profile profile"
    )
