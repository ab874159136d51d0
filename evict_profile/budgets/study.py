"""A whole front: every setting on every workload, what to run, and which rule is worth
what."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from evict_profile.budgets.compare import (
    Comparison,
    OracleNeed,
    comparisons,
    oracle_needs,
    oracle_says,
    sayings,
)
from evict_profile.budgets.front import Front, fronts
from evict_profile.budgets.load import BudgetRecord, load_budgets
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.recommend import Advice, Bounds, recommend
from evict_profile.budgets.unseen import Unseen, unseen
from evict_profile.calibrate.drafting import speed_over
from evict_profile.io import finite
from evict_profile.runtime import CostTable
from evict_profile.signed import Facts
from evict_profile.table import load_table
from evict_profile.traces import About
from evict_profile.traces.trace import check_same_model

SCHEMA = "evict-budget-front/1"


@dataclass(frozen=True)
class Ask:
    """What to draw.

    Attributes:
        recordings: the file, or files that differ in rules alone.
        table: the cost table that prices it.
        workloads: those to take; none means all.
        bounds: the quality to keep.
    """

    recordings: Sequence[Path]
    table: Path
    workloads: Sequence[str] = ()
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True)
class Part:
    """One workload, or all together."""

    front: Front
    advice: Advice
    comparisons: tuple[Comparison, ...]
    oracle: tuple[OracleNeed, ...]
    sayings: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """What a recording and a table say together.

    Attributes:
        recording, table: names of the files.
        sha256: of the table.
        key: what it prices.
        price_spread: where its costs may lie, as shares of them; 90 %.
        about: what was recorded.
        parts: all workloads together, then each.
        unseen: the advice on prompts that it was not chosen on.
        marks: what the prices had to assume.
    """

    recording: str
    table: str
    sha256: str
    key: Facts
    price_spread: tuple[float, float]
    about: About
    parts: tuple[Part, ...]
    unseen: Unseen | None
    marks: tuple[str, ...]

    @property
    def whole(self) -> Part:
        """All workloads together."""
        return self.parts[0]

    @property
    def says(self) -> str:
        """What to do on all workloads, and how that holds on unseen prompts."""
        whole = self.whole.advice.says
        return f"{whole} {self.unseen.says}" if self.unseen else whole

    def as_json(self) -> str:
        """Everything as JSON; unbounded intervals end in null."""
        document = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(finite(document), indent=1, allow_nan=False)


def study(ask: Ask) -> Study:
    """Price a recording's settings and recommend one.

    Raises:
        TraceError: the recording cannot be read, lacks a workload that is asked for,
            or is of another model than the table.
        TableError: the table cannot be read.
    """
    recording = load_budgets(*ask.recordings)
    whole, table = load_table(ask.table), CostTable.load(ask.table)
    check_same_model(recording.about, whole.model, "recording")
    recording = recording.only(ask.workloads or recording.workloads)
    prices = Prices(table, recording, speed_over(recording.about, whole))
    return Study(
        recording=", ".join(path.name for path in ask.recordings),
        table=ask.table.name,
        sha256=table.sha256,
        key=dict(table.key),
        price_spread=table.spread,
        about=recording.about,
        parts=tuple(_parts(recording, prices, ask.bounds)),
        unseen=unseen(recording, prices, ask.bounds),
        marks=prices.marks,
    )


def _parts(recording: BudgetRecord, prices: Prices, bounds: Bounds) -> Sequence[Part]:
    parts = []
    for drawn in fronts(recording, prices):
        found = comparisons(drawn.draws, drawn.resamples)
        needs = oracle_needs(drawn.draws, drawn.resamples)
        said = sayings(drawn.front, found) + ([oracle_says(needs)] if needs else [])
        advice = recommend(drawn.front, bounds)
        parts.append(Part(drawn.front, advice, found, needs, tuple(said)))
    return parts
