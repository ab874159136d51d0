"""A whole replay: every place, what to do there, and what could mislead.

Wrong tables and other memories are tried where most is known: on all workloads
together, at the lowest temperature; memories at the smallest batch alone.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evict_profile.calibrate.drafting import speed_over
from evict_profile.errors import ConfigError
from evict_profile.io import finite, parse_share
from evict_profile.replay.cell import Cell, Place
from evict_profile.replay.contest import Contest, Progress, parts
from evict_profile.replay.ground import Ground
from evict_profile.replay.memory import Memory, memory
from evict_profile.replay.mismatch import Mismatch, mismatches, name_of, other_table
from evict_profile.replay.verdict import Verdict, judge, overall
from evict_profile.runtime import CostTable
from evict_profile.table import load_table
from evict_profile.traces import About, Trace, load_traces
from evict_profile.traces.trace import check_same_model, check_trees

SCHEMA = "evict-replay/1"


@dataclass(frozen=True)
class Ask:
    """What to replay.

    Attributes:
        traces: the trace file.
        table: the cost table that prices it.
        batches: requests in lockstep, one replay each.
        workloads, temperatures: those to replay; none means all.
        part: of the prompts, as i/n.
        seeds: orders of replies.
        other_table: of another device, for the mismatch; None takes a shipped one.
    """

    traces: Path
    table: Path
    batches: Sequence[int]
    workloads: Sequence[str]
    seeds: int
    temperatures: Sequence[float] = ()
    part: str = "1/1"
    other_table: Path | None = None


@dataclass(frozen=True)
class Misled:
    """Every wrong table in one place."""

    place: Place
    found: tuple[Mismatch, ...]


@dataclass(frozen=True)
class Study:
    """What a replay found.

    Attributes:
        traces, table: names of the files.
        sha256: of the table.
        workload: what its acceptance was learnt on; empty where it was not.
        key: what the table prices.
        about: what was traced.
        dense: whether the trace has a tree at every position.
        seeds: orders of replies.
        cells, verdicts: one a place, in the same order.
        says: the verdict on all of it.
        misled: wrong tables, by batch.
        memory: what the trace says of the runtime's memory, and where.
        other: the table of another device that was tried.
    """

    traces: str
    table: str
    sha256: str
    workload: str
    key: dict[str, Any]
    about: About
    dense: bool
    seeds: int
    cells: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...]
    says: str
    misled: tuple[Misled, ...]
    memory: Memory
    memory_of: Place
    other: str

    def as_json(self) -> str:
        """Everything as JSON; unbounded intervals end in null."""
        document = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(finite(document), indent=1, allow_nan=False)


def study(ask: Ask, say: Progress) -> Study:
    """Replay a trace; `say` is told of each place before it is replayed.

    Raises:
        TraceError: the trace cannot be read, lacks a workload that is asked for, or is
            of another model than the table.
        TableError: a table cannot be read.
        ConfigError: numbers that cannot be, or batches too large for the table.
    """
    _require_sense(ask)
    trace = _chosen(load_traces(ask.traces), ask)
    whole = load_table(ask.table)
    check_same_model(trace.about, whole.model)
    check_trees(trace)
    table, other = CostTable.load(ask.table), other_table(ask.other_table)
    _require_priced(table, ask.batches)
    speed = speed_over(trace.about, whole)
    cells: list[Cell] = []
    for part, workload, temperature in parts(trace):
        ground = Ground(part)
        for batch in ask.batches:
            place = Place(workload, temperature, batch)
            say(f"replaying {place}: {ground.tokens} tokens, {ask.seeds} orders")
            cells.append(Contest(ground, table, place, ask.seeds, speed).cell())
    widest = _widest(trace, table, ask, speed)
    say(f"deciding with wrong tables, {widest[0].place.workload}")
    misled = [Misled(each.place, tuple(mismatches(each, other))) for each in widest]
    say(f"trying other memories, {widest[0].place}")
    verdicts = tuple(judge(cell) for cell in cells)
    return Study(
        traces=ask.traces.name,
        table=ask.table.name,
        sha256=table.sha256,
        workload=table.workload,
        key=dict(table.key),
        about=trace.about,
        dense=trace.dense,
        seeds=ask.seeds,
        cells=tuple(cells),
        verdicts=verdicts,
        says=overall(verdicts),
        misled=tuple(misled),
        memory=memory(widest[0]),
        memory_of=widest[0].place,
        other=name_of(other),
    )


def _require_sense(ask: Ask) -> None:
    if not ask.batches or min(ask.batches) < 1:
        raise ConfigError(
            f"--batch {min(ask.batches, default=0)} is none; give 1 or more"
        )
    if len(set(ask.batches)) < len(ask.batches):
        raise ConfigError("--batch names a batch size twice; name each once")
    if ask.seeds < 1:
        raise ConfigError(f"--seeds {ask.seeds} is none; give 1 or more")


def _require_priced(table: CostTable, batches: Sequence[int]) -> None:
    """Each request verifies its root and, to decide at all, one token more."""
    for batch in batches:
        most = table.most_tokens(batch)
        if 2 * batch > most:
            raise ConfigError(
                f"--batch {batch}: {table.path} prices {most} tokens in one forward; "
                f"give {most // 2} at most"
            )


def _chosen(trace: Trace, ask: Ask) -> Trace:
    """The replies that are asked for."""
    trace = trace.part(*parse_share("--part", ask.part))
    any_of: tuple[None] = (None,)
    replies = [
        reply
        for temperature in tuple(sorted(set(ask.temperatures))) or any_of
        for name in tuple(sorted(set(ask.workloads))) or any_of
        for reply in trace.only(name, temperature).replies
    ]
    return Trace(trace.about, tuple(replies), trace.clocks)


def _widest(trace: Trace, table: CostTable, ask: Ask, speed: float) -> list[Contest]:
    """All workloads at the lowest temperature, at each batch, the smallest first."""
    lowest = trace.temperatures[0]
    part, workload, _ = [p for p in parts(trace) if p[2] == lowest][-1]
    ground = Ground(part)
    return [
        Contest(ground, table, Place(workload, lowest, batch), ask.seeds, speed)
        for batch in sorted(ask.batches)
    ]
