"""Reading a trace, and refusing in one sentence what no trace can be."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evict_profile.errors import TraceError
from evict_profile.records import parse
from evict_profile.signed import Facts, differences
from evict_profile.stats import Ints
from evict_profile.traces.columns import Columns
from evict_profile.traces.marks import notes_of, readable
from evict_profile.traces.schema import TIMES, TRACE, Form
from evict_profile.traces.trace import About, Clock, Clocks, Reply, Step, Trace

IDENTITY = ("workload", "temperature", "prompt", "seed")
"""What tells replies apart, and the order in which they stand."""


@dataclass(frozen=True)
class Notes:
    """What a trace's metadata holds, beside its schema."""

    about: About = field(default_factory=About)
    clocks: tuple[Clock, ...] = ()


@dataclass(frozen=True, eq=False)
class Part:
    """One file of a folder: a whole trace of some of a server's steps."""

    path: Path
    table: pa.Table
    notes: Notes

    @property
    def server(self) -> str:
        """Who wrote it: its name up to the number of the part."""
        return self.path.stem.rpartition("-")[0]


def load_traces(path: Path) -> Trace:
    """The trace in a Parquet file, or in a folder of parts, as a server writes them.

    Raises:
        TraceError: no such file, no Parquet, another schema, a missing column, or
            steps that cannot be; the message names the first one and the fix.
        ConfigError: the metadata has a field of another type.
    """
    if path.is_dir():
        return _joined(path, _parts(path))
    return trace_of(_read(path), str(path))


def recorded_facts(path: Path, form: Form = TRACE) -> Facts:
    """What the finished recording at --out says it is a recording of.

    Raises:
        TraceError: it is none that our recorder wrote, and not ours to replace.
    """
    try:
        with readable(path, form):
            schema = pq.ParquetFile(path).schema_arrow
        facts: Facts = notes_of(schema, str(path), form)["recorded"]
    except (TraceError, KeyError) as error:
        raise TraceError(
            f"{path}: is there already, and no {form.noun} that '{form.command}' "
            "recorded; choose another --out"
        ) from error
    return facts


def _read(path: Path) -> pa.Table:
    with readable(path, TRACE):
        return pq.ParquetFile(path).read()


def _parts(folder: Path) -> list[Part]:
    """A folder's parts, each server's in the order in which it wrote them."""
    if (folder / "plan.json").exists():
        raise TraceError(
            f"{folder}: is a recording that has not ended; run the same 'evict-profile "
            "trace' again, and give the trace file that it writes"
        )
    parts = [_part(path) for path in folder.glob("*.parquet")]
    if not parts:
        raise TraceError(
            f"{folder}: holds no *.parquet; give a trace file, or the folder that a "
            "server with EVICT_PROFILE_MODE=observe has written steps to"
        )
    return sorted(parts, key=lambda part: (part.server, part.path.name))


def _part(path: Path) -> Part:
    table = _read(path)
    return Part(path, table, _parsed(table, str(path)))


def _joined(folder: Path, parts: Sequence[Part]) -> Trace:
    """One trace of all parts.

    A part's clocks are medians over the last steps before it, and do not say over how
    many; of each batch size the last part's are taken.
    """
    for part in parts[1:]:
        _require_alike(parts[0], part)
    clocks = {clock.batch: clock for part in parts for clock in part.notes.clocks}
    columns = Columns(_renumbered(parts), parts[0].notes.about, str(folder))
    ordered = tuple(clocks[batch] for batch in sorted(clocks))
    return Trace(columns.about, tuple(_replies(columns)), ordered)


def _require_alike(first: Part, other: Part) -> None:
    apart = differences(asdict(other.notes.about), asdict(first.notes.about))
    if not other.table.schema.equals(first.table.schema):
        apart.append("other columns")
    if apart:
        raise TraceError(
            f"{other.path}: is of another recording than {first.path} "
            f"({'; '.join(apart)}); give each a folder of its own"
        )


def _renumbered(parts: Sequence[Part]) -> pa.Table:
    """All rows. Every server counts its prompts from 0: here the count goes on."""
    tables, base = list[pa.Table](), 0
    for _, own in groupby(parts, key=lambda part: part.server):
        rows = pa.concat_tables([part.table for part in own])
        place = rows.schema.get_field_index("prompt")
        # A column that lacks, or holds no numbers, is refused with all others.
        if place >= 0 and pa.types.is_integer(rows.schema.types[place]):
            moved = pc.add(rows.column(place), base)
            base = 1 + (pc.max(moved).as_py() or 0)
            rows = rows.set_column(place, "prompt", moved)
        tables.append(rows)
    return pa.concat_tables(tables)


def _parsed(table: pa.Table, source: str) -> Notes:
    notes = notes_of(table.schema, source, TRACE)
    return parse(Notes, notes, source, extra_keys=True)


def trace_of(table: pa.Table, source: str) -> Trace:
    """The trace that a table holds.

    Raises:
        TraceError, ConfigError: as `load_traces`.
    """
    notes = _parsed(table, source)
    replies = tuple(_replies(Columns(table, notes.about, source)))
    return Trace(notes.about, replies, notes.clocks)


def _replies(columns: Columns) -> Iterator[Reply]:
    """Rows in any order, as replies in theirs."""
    keys = [np.unique(columns.values(name), return_inverse=True) for name in IDENTITY]
    order = np.lexsort((columns.position, *(code for _, code in reversed(keys))))
    codes = np.stack([code[order] for _, code in keys])
    begins = np.append(True, np.any(np.diff(codes), axis=0))
    _refuse_doubles(columns, order, begins)
    steps = list(_steps(columns))
    bounds = [*np.flatnonzero(begins).tolist(), len(order)]
    for low, high in pairwise(bounds):
        name, temperature, prompt, seed = (
            values[code[order[low]]] for values, code in keys
        )
        own = tuple(steps[row] for row in order[low:high])
        yield Reply(str(name), int(prompt), int(seed), float(temperature), own)


def _refuse_doubles(columns: Columns, order: Ints, begins: np.ndarray) -> None:
    stays = np.diff(columns.position[order], prepend=-1) == 0
    again = np.zeros(len(order), bool)
    again[order[stays & ~begins]] = True
    columns.refuse_rows(again, "this position of this reply is there twice")


def _steps(columns: Columns) -> Iterator[Step]:
    """One step a row, in the order of the rows."""
    forest, parent, nodes = columns.forest, columns.parent, columns.nodes.tolist()
    path_prob, depth, rank = forest.falling, forest.depth, forest.rank
    accepted, routes, times = columns.accepted, columns.routes, _clocks(columns)
    positions, contexts = columns.position.tolist(), columns.values("context").tolist()
    for row, (low, high) in enumerate(pairwise(nodes)):
        yield Step(
            position=positions[row],
            context=contexts[row],
            parent=parent[low:high],
            path_prob=path_prob[low:high],
            depth=depth[low:high],
            rank=rank[low:high],
            accepted=accepted[low:high],
            # Each row before this one has a root as well.
            routes=None if routes is None else routes[low + row : high + row + 1],
            clocks=times[row],
        )


def _clocks(columns: Columns) -> list[Clocks | None]:
    if TIMES[0] not in columns.table.column_names:
        return [None] * len(columns.table)
    start, flat = columns.lists("draft_us")
    levels, ends = flat.tolist(), start.tolist()
    verify_us = columns.values("verify_us").tolist()
    fixed_us = columns.values("fixed_us").tolist()
    return [
        Clocks(tuple(levels[low:high]), verify, fixed)
        for low, high, verify, fixed in zip(
            ends[:-1], ends[1:], verify_us, fixed_us, strict=True
        )
    ]
