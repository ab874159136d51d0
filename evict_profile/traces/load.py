"""Read and check a trace: one Parquet file, or a folder of parts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.records import differences
from evict_profile.traces.columns import TraceColumns
from evict_profile.traces.schema import TIMES, Metadata, metadata_of, read
from evict_profile.traces.trace import Reply, Trace, falling

IDENTITY = ("workload", "temperature", "prompt", "seed")
"""Fields that identify a reply, in sort order."""


@dataclass(frozen=True, eq=False)
class Part:
    path: Path
    table: pa.Table
    metadata: Metadata

    @property
    def server(self) -> str:
        return self.path.stem.rpartition("-")[0]


def load_traces(path: Path) -> Trace:
    return _joined(path) if path.is_dir() else trace_of(read(path), path)


def trace_of(table: pa.Table, source: Path | str) -> Trace:
    metadata = metadata_of(table, str(source))
    columns = TraceColumns(table, metadata.about, str(source))
    return _trace(columns, metadata.clocks)


def parts_of(folder: Path) -> list[Part]:
    tables = {path: read(path) for path in folder.glob("*.parquet")}
    parts = [Part(p, t, metadata_of(t, str(p))) for p, t in tables.items()]
    parts.sort(key=lambda part: (part.server, part.path.name))
    if not parts:
        raise DataError(
            f"{folder}: holds no *.parquet; give a recording, or the folder that a "
            "server with EVICT_PROFILE_MODE=observe has written steps to"
        )
    if len(parts) < (replies := parts[0].metadata.replies):
        raise DataError(
            f"{folder}: holds {len(parts)} of {replies} replies; run the "
            "command that records it again, which records the others"
        )
    for part in parts[1:]:
        _check_alike(parts[0], part)
    return parts


def _check_alike(first: Part, other: Part) -> None:
    apart = differences(asdict(other.metadata.about), asdict(first.metadata.about))
    apart += differences(other.metadata.recorded, first.metadata.recorded)
    if not other.table.schema.equals(first.table.schema):
        apart.append("other columns")
    if apart:
        raise DataError(
            f"{other.path}: is of another recording than {first.path} "
            f"({'; '.join(dict.fromkeys(apart))}); give each a folder of its own"
        )


def _joined(folder: Path) -> Trace:
    parts = parts_of(folder)
    clocks = {clock.batch: clock for part in parts for clock in part.metadata.clocks}
    about = parts[0].metadata.about
    columns = TraceColumns(_renumbered(parts), about, str(folder))
    return _trace(columns, tuple(clocks[batch] for batch in sorted(clocks)))


def _renumbered(parts: Sequence[Part]) -> pa.Table:
    tables, base = list[pa.Table](), 0
    for _, server_parts in groupby(parts, key=lambda part: part.server):
        rows = pa.concat_tables([part.table for part in server_parts])
        index = rows.schema.get_field_index("prompt")
        # A column that is missing, or holds no numbers, is refused with all others.
        if index >= 0 and pa.types.is_integer(rows.schema.types[index]):
            moved = pc.add(rows.column(index), base)
            base = 1 + (pc.max(moved).as_py() or 0)
            rows = rows.set_column(index, "prompt", moved)
        tables.append(rows)
    return pa.concat_tables(tables)


def _trace(columns: TraceColumns, clocks: tuple[DraftClock, ...]) -> Trace:
    names, order = [column.name for column in fields(Reply)], list(IDENTITY)
    rows = pd.DataFrame({name: columns.values(name) for name in names})
    twice = rows.assign(position=columns.position).duplicated().to_numpy()
    columns.check_rows(twice, "this position of this reply is there twice")
    reply: Any = rows.groupby(order).ngroup().to_numpy()
    replies = rows.drop_duplicates().sort_values(order).itertuples(index=False)
    nodes, verify_us = columns.nodes, None
    if TIMES[0] in columns:
        verify_us = columns.values("verify_us").astype(np.float64)
    trace = Trace(
        columns.about,
        tuple(Reply(*values) for values in replies),
        reply,
        columns.position,
        columns.values("context"),
        replace(nodes, path_prob=falling(nodes.parent, nodes.path_prob)),
        columns.routes,
        verify_us,
        clocks,
    )
    return trace.take(np.lexsort((columns.position, reply)))
