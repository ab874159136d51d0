"""Reading a trace, and refusing in one sentence what no trace can be."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evict_profile.errors import TraceError
from evict_profile.records import differences
from evict_profile.stats import Bools, Ints
from evict_profile.table import DraftClock
from evict_profile.traces.columns import Columns
from evict_profile.traces.schema import (
    COLUMNS,
    NEEDED,
    SCHEMA,
    TIMES,
    Metadata,
    metadata_of,
    read,
    route_type,
)
from evict_profile.traces.trace import (
    About,
    Nodes,
    Reply,
    Routes,
    Trace,
    falling,
)

IDENTITY = ("workload", "temperature", "prompt", "seed")
"""What tells replies apart, and the order in which they stand."""

DEFAULTS: dict[str, Any] = {
    "workload": "unnamed",
    "seed": 0,
    "temperature": 0.0,
    "context": 0,
}

ROUNDING = 1e-3
"""Relative: products in half precision may end this far above their parent's."""


@dataclass(frozen=True, eq=False)
class Part:
    """One file of a folder: a whole trace of some of its steps."""

    path: Path
    table: pa.Table
    metadata: Metadata

    @property
    def server(self) -> str:
        """Who wrote it: its name up to the number of the part."""
        return self.path.stem.rpartition("-")[0]


def load_traces(path: Path) -> Trace:
    """The trace in a Parquet file, or in a folder of parts."""
    return _joined(path) if path.is_dir() else trace_of(read(path), path)


def trace_of(table: pa.Table, source: Path | str) -> Trace:
    """The trace that a table holds."""
    metadata = metadata_of(table, str(source))
    columns = TraceColumns(table, metadata.about, str(source))
    return _trace(columns, metadata.clocks)


def parts_of(folder: Path, schema: str = SCHEMA) -> list[Part]:
    """A folder's parts, each server's in the order in which it wrote them."""
    tables = {path: read(path) for path in folder.glob("*.parquet")}
    parts = [Part(p, t, metadata_of(t, str(p), schema)) for p, t in tables.items()]
    parts.sort(key=lambda part: (part.server, part.path.name))
    if not parts:
        raise TraceError(
            f"{folder}: holds no *.parquet; give a recording, or the folder that a "
            "server with EVICT_PROFILE_MODE=observe has written steps to"
        )
    if len(parts) < (replies := parts[0].metadata.replies):
        raise TraceError(
            f"{folder}: holds {len(parts)} of {replies} replies; run the same "
            "'evict-profile trace' again, which records the others"
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
        raise TraceError(
            f"{other.path}: is of another recording than {first.path} "
            f"({'; '.join(dict.fromkeys(apart))}); give each a folder of its own"
        )


def _joined(folder: Path) -> Trace:
    """One trace of all parts.

    A part's clocks are medians over the last steps before it, and do not say over how
    many; of each batch size the last part's are taken.
    """
    parts = parts_of(folder)
    clocks = {clock.batch: clock for part in parts for clock in part.metadata.clocks}
    about = parts[0].metadata.about
    columns = TraceColumns(_renumbered(parts), about, str(folder))
    return _trace(columns, tuple(clocks[batch] for batch in sorted(clocks)))


def _renumbered(parts: Sequence[Part]) -> pa.Table:
    """All rows. Every server counts its prompts from 0: here the count goes on."""
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


class TraceColumns(Columns):
    """The columns of a trace; nodes lie end to end, row by row."""

    def __init__(self, table: pa.Table, about: About, source: str) -> None:
        super().__init__(table, COLUMNS, source, NEEDED, ("prompt", "position"))
        self.about = about
        if 0 < sum(name in self for name in TIMES) < len(TIMES):
            self.refuse(f"give all of {', '.join(TIMES)}, or none of them")
        self.check_rows(self.position < 0, "position must be at least 0")
        self.check_rows(
            ~(self.values("temperature") >= 0.0), "temperature must be at least 0"
        )
        self._check_trees()
        self._check_probabilities()
        self._check_accepted()

    def values(self, name: str) -> NDArray[Any]:
        """One value a row; the default where the column is not there."""
        if name not in self:
            return np.full(len(self), DEFAULTS[name])
        return super().values(name)

    @cached_property
    def position(self) -> Ints:
        """One a row, int64 [rows]."""
        return self.values("position")

    @cached_property
    def size(self) -> Ints:
        """Nodes of each row, int64 [rows]."""
        return np.diff(self.lists("path_prob")[0])

    @cached_property
    def nodes(self) -> Nodes:
        """Of all rows, with path probabilities as they are recorded."""
        step, size = np.repeat(np.arange(len(self)), self.size), self.size
        above = self.lists("parent")[1].astype(np.int64)
        parent = np.where(above >= 0, above + (np.cumsum(size) - size)[step], -1)
        path_prob = self.lists("path_prob")[1].astype(np.float64)
        return Nodes(step, parent, path_prob, self.lists("accepted")[1])

    @cached_property
    def routes(self) -> Routes | None:
        """Flat [rows + all nodes, layers, k]: each row's root before its nodes."""
        if "routes" not in self:
            return None
        about, column = self.about, self.column("routes")
        if not (about.layers and about.experts and about.top_k):
            self.refuse("has routes: its metadata must say layers, experts and top_k")
        kind = route_type(about.experts)
        row_bytes = about.layers * about.top_k * kind.itemsize
        self.check_rows(
            pc.binary_length(column).to_numpy() != (self.size + 1) * row_bytes,
            f"routes must hold {row_bytes} bytes for the root and for each node "
            f"({about.layers} layers x {about.top_k} experts, {kind.name})",
        )
        flat = np.frombuffer(b"".join(column.to_pylist()), kind)
        if flat.max() >= about.experts:
            self.refuse(f"routes name expert {flat.max()} of {about.experts}")
        return flat.astype(np.int16).reshape(-1, about.layers, about.top_k)

    def _check_trees(self) -> None:
        for name in ("parent", "accepted"):
            self.check_rows(
                np.diff(self.lists(name)[0]) != self.size,
                f"{name} and path_prob must have one entry a node",
            )
        above = self.lists("parent")[1]
        place = np.arange(len(above)) - np.repeat(
            np.cumsum(self.size) - self.size, self.size
        )
        self._check_nodes(
            (above < -1) | (above >= place),
            "parents must stand before their children, and -1 is the root",
        )

    def _check_probabilities(self) -> None:
        path_prob, parent = self.nodes.path_prob, self.nodes.parent
        above = np.where(parent >= 0, path_prob[parent], 1.0)
        # Not `> 1`: that lets nan through.
        self._check_nodes(
            ~((path_prob >= 0.0) & (path_prob <= 1.0 + ROUNDING)),
            "path_prob must be within 0 and 1",
        )
        self._check_nodes(
            path_prob > above * (1.0 + ROUNDING),
            "path_prob rises from parent to child; it is the product of the drafter's "
            "probabilities from the root",
        )

    def _check_accepted(self) -> None:
        nodes = self.nodes
        self._check_nodes(
            nodes.accepted & ~nodes.parent_accepted,
            "a node is accepted and its parent is not; accepted means the whole path",
        )
        accepted = np.flatnonzero(nodes.accepted)
        _, first = np.unique(nodes.family[accepted], return_index=True)
        again = np.zeros(len(nodes), bool)
        again[np.delete(accepted, first)] = True
        self._check_nodes(
            again, "two siblings are accepted, and only one token can follow"
        )

    def _check_nodes(self, bad: Bools, reason: str) -> None:
        self.check_rows(np.bincount(self.nodes.step, bad, len(self)) > 0, reason)


def _trace(columns: TraceColumns, clocks: tuple[DraftClock, ...]) -> Trace:
    """Rows in any order, as replies in theirs."""
    names, order = [each.name for each in fields(Reply)], list(IDENTITY)
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
        tuple(Reply(*each) for each in replies),
        reply,
        columns.position,
        columns.values("context"),
        replace(nodes, path_prob=falling(nodes.parent, nodes.path_prob)),
        columns.routes,
        verify_us,
        clocks,
    )
    return trace.take(np.lexsort((columns.position, reply)))
