"""The cost table: one JSON file that says what verification costs, and how sure.

Schema `evict-cost-table/2`. A table is signed by its own hash: `sha256` is the digest
of the document without that field, serialised compactly. So one changed byte is
found, and a table can be named by its hash. A table prices one model on one device,
engine and set of kernels (its key), and nothing near it. What a drafter brings on a
workload stands beside the prices (`evict_profile.workload`).

Schema 1 had the prices alone. Such a table is read as one of this schema that has
nothing measured of a drafter, and saved as that.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.errors import TableError
from evict_profile.records import parse
from evict_profile.signed import SCHEMA, Facts, digest, read_signed
from evict_profile.stats import ErrorSummary, Floats
from evict_profile.workload import Acceptance, Drafting, UnionGrowth


@dataclass(frozen=True)
class Key:
    """What a table prices. Lookup is exact on every field."""

    gpu: str
    model: str
    dtype: str
    tp: int
    ep: int
    engine: str
    engine_version: str
    attention_backend: str
    moe_backend: str
    graph_mode: str


@dataclass(frozen=True)
class Axes:
    """Values measured on each axis; `ladder` holds the captured graph widths."""

    width: tuple[int, ...]
    union: tuple[int, ...]
    context: tuple[int, ...]
    batch: tuple[int, ...]
    max_tokens: int
    ladder: tuple[int, ...]


@dataclass(frozen=True)
class TermCost:
    """One term of the fit: `us_per_unit` times clip(feature - low, 0, high - low).

    The feature "crowd" is the union times the ramp in rows per expert. `high` is
    null for a ramp without end; the interval is the 90 % bootstrap interval.
    """

    feature: str
    low: float
    high: float | None
    us_per_unit: float
    us_per_unit_interval: tuple[float, float]


@dataclass(frozen=True)
class Fit:
    """The cost model: layers_us * layer_scale + ends_us.

    Attributes:
        held_out: errors on unseen cells, ours first, then the simpler models.
        natural: error where the router chose the experts itself, priced at the
            union that was observed; None where that was not measured.
        domain: least and largest measured value of each axis.
    """

    measured_layers: int
    layer_scale: float
    layers: tuple[TermCost, ...]
    ends: tuple[TermCost, ...]
    held_out: dict[str, ErrorSummary]
    natural: ErrorSummary | None
    domain: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Staircase:
    """Step cost when t tokens are verified in all, for t = 0..len - 1.

    Every request verifies at least its root, so entries below `batch` repeat the
    entry at `batch`. Costs are read at the padded width where there is a ladder, and
    at the table's union growth. `includes` names the parts of a step that are in it.
    """

    batch: int
    context: int
    step_cost_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]
    includes: tuple[str, ...] = ("verify",)


@dataclass(frozen=True)
class Gate:
    """One condition that a table must meet to be exported."""

    name: str
    passed: bool
    says: str


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from.

    Attributes:
        sweep: what was asked for; with the samples, a table can be refitted.
        clock: what `latency_us` means on this device.
        reference_us: median reference behind the latencies; None without one.
        aa_floor: p95 over cells of the relative difference between the medians of a
            cell's odd and even samples: what differs when nothing does.
        drift: relative change of latency, last third of the rounds against the first,
            median over the cells measured in both.
        dtype_reason: why the sweep ran in its dtype, where the runner chose.
    """

    fingerprint: dict[str, Any]
    sweep: SweepSpec
    plan_sha256: str
    samples_sha256: str
    samples: int
    cells: int
    skipped: dict[str, int]
    started: str
    finished: str
    measured_minutes: float
    bandwidth_gbps: float
    union_test: dict[str, Any]
    scaling_test: dict[str, Any] | None
    clock: str
    reference_us: float | None
    aa_floor: float
    drift: float
    evict_profile: str
    dtype_reason: str = ""


@dataclass(frozen=True)
class CostTable:
    """A whole table, as the file holds it less its hash."""

    key: Key
    version: str
    model: ModelSpec
    axes: Axes
    fit: Fit
    staircases: tuple[Staircase, ...]
    union_growth: UnionGrowth
    gates: tuple[Gate, ...]
    provenance: Provenance
    acceptance: Acceptance | None = None
    drafting: Drafting | None = None
    schema: str = field(default=SCHEMA)

    def step_cost_us(self, batch: int, context: int) -> Floats:
        """The staircase at a measured batch and context, float64 [T + 1].

        Raises:
            TableError: that batch and context were not measured.
        """
        return np.array(self.staircase(batch, context).step_cost_us)

    def staircase(self, batch: int, context: int) -> Staircase:
        """The staircase with its interval; raises as `step_cost_us` does."""
        for stairs in self.staircases:
            if (stairs.batch, stairs.context) == (batch, context):
                return stairs
        places = ", ".join(f"({s.batch}, {s.context})" for s in self.staircases)
        raise TableError(
            f"no staircase at batch {batch}, context {context}; this table has "
            f"(batch, context) at {places}"
        )

    @property
    def relative_path(self) -> Path:
        """<gpu>/<model>/<engine>/<version>.json."""
        names = (self.key.gpu, self.key.model, self.key.engine)
        return Path(*(slug(name) for name in names), f"{self.version}.json")


def save_table(table: CostTable, path: Path) -> str:
    """Write a table; returns its hash.

    Raises:
        OSError: as `Path.write_text` does; callers write atomically.
    """
    document = asdict(table)
    signed = {**document, "sha256": digest(document)}
    text = json.dumps(signed, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(_short_lists(text) + "\n", encoding="utf-8", newline="\n")
    return str(signed["sha256"])


def load_table(path: Path) -> CostTable:
    """Read a table and check its schema and its hash.

    Raises:
        TableError: unreadable, another schema, or a hash that does not match.
        ConfigError: a field is missing or of the wrong kind.
    """
    document, _ = read_signed(path)
    return parse(CostTable, {**document, "schema": SCHEMA}, str(path))


def files_of(path: Path) -> tuple[Path, ...]:
    """What makes up a table: its JSON, and the samples that it was made from.

    None of a path without a name, such as "." or "": whoever reads it says what it is.
    """
    return (path, path.with_suffix(".parquet")) if path.name else ()


def key_of(facts: Facts) -> Key:
    """The key of what a runner reported."""
    return Key(
        gpu=facts["device"],
        model=facts["model"],
        dtype=facts["dtype"],
        tp=facts["tp"],
        ep=facts["ep"],
        engine=facts["engine"],
        engine_version=facts["engine_version"],
        attention_backend=facts["attention_backend"],
        moe_backend=facts["moe_backend"],
        graph_mode=facts["graph_mode"],
    )


def slug(name: str) -> str:
    """A name as a folder: lower case, marks dropped, runs of others to one dash."""
    plain = re.sub(r"\(r\)|\(tm\)|@", " ", name.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-")


def version_of(text: str) -> tuple[int, ...]:
    """ "1.2.3" as numbers that order as versions do.

    Raises:
        TableError: the text is no version.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise TableError(
            f"{text}.json: is not named by a version such as 1.0.0; rename it, or move "
            "it out of the tree of tables"
        )
    return tuple(int(part) for part in text.split("."))


def _short_lists(text: str) -> str:
    """Put lists of plain numbers on one line each: a diff then shows one staircase."""
    numbers = re.compile(r"\[\s*(-?[\d.eE+-]+(?:,\s*-?[\d.eE+-]+)*)\s*\]")
    return numbers.sub(lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
