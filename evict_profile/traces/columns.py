"""A trace's columns as flat arrays, checked once, so that nothing later need doubt."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evict_profile.errors import TraceError
from evict_profile.stats import Bools, Ints
from evict_profile.traces.forest import Forest
from evict_profile.traces.schema import COLUMNS, NEEDED, TIMES, route_type
from evict_profile.traces.trace import About, Routes

ROUNDING = 1e-3
"""Relative: products in half precision may end this far above their parent's."""

DEFAULTS: dict[str, Any] = {
    "workload": "unnamed",
    "seed": 0,
    "temperature": 0.0,
    "context": 0,
}


class Columns:
    """The columns of one table. Rows are steps; nodes lie end to end, row by row.

    Raises:
        TraceError: a column is missing or of another type, or the rows hold what no
            step can; the message names the first such row.
    """

    def __init__(self, table: pa.Table, about: About, source: str) -> None:
        self.table, self.about, self.source = table, about, source
        if missing := [name for name in NEEDED if name not in table.column_names]:
            self.refuse(
                f"has no column {', '.join(missing)}; a trace needs {', '.join(NEEDED)}"
            )
        if not len(table):
            self.refuse("holds no steps; record at least one")
        if 0 < sum(name in table.column_names for name in TIMES) < len(TIMES):
            self.refuse(f"give all of {', '.join(TIMES)}, or none of them")
        self._check_scalars()
        self._check_trees()

    def values(self, name: str) -> NDArray[Any]:
        """One value a row; the default where the column is not there."""
        if name not in self.table.column_names:
            return np.full(len(self.table), DEFAULTS[name])
        return np.asarray(self._column(name).to_numpy(zero_copy_only=False))

    def lists(self, name: str) -> tuple[Ints, NDArray[Any]]:
        """Where each row begins in the flat values, int64 [rows + 1]; and those."""
        column = self._column(name)
        start = np.zeros(len(column) + 1, np.int64)
        np.cumsum(pc.list_value_length(column).to_numpy(), out=start[1:])
        flat = column.flatten()
        if flat.null_count:
            self.refuse(f"column {name} has nulls within its lists; fill them")
        return start, flat.to_numpy(zero_copy_only=False)

    @cached_property
    def prompt(self) -> Ints:
        """One a row, int64 [rows]."""
        return self.values("prompt")

    @cached_property
    def position(self) -> Ints:
        """One a row, int64 [rows]."""
        return self.values("position")

    @cached_property
    def nodes(self) -> Ints:
        """Where each row's nodes begin in the flat arrays, int64 [rows + 1]."""
        return self.lists("path_prob")[0]

    @cached_property
    def accepted(self) -> Bools:
        """Flat, bool [nodes]."""
        return self.lists("accepted")[1]

    @cached_property
    def parent(self) -> Ints:
        """Flat, int64 [nodes]: each within its own tree, -1 the root."""
        return self.lists("parent")[1].astype(np.int64)

    @cached_property
    def forest(self) -> Forest:
        """The trees of all rows."""
        tree = np.repeat(np.arange(len(self.table)), np.diff(self.nodes))
        above = np.where(self.parent >= 0, self.parent + self.nodes[tree], -1)
        path_prob = self.lists("path_prob")[1].astype(np.float64)
        return Forest(tree, above, path_prob)

    @cached_property
    def routes(self) -> Routes | None:
        """Flat [rows + all nodes, layers, k]: each row's root before its nodes."""
        if "routes" not in self.table.column_names:
            return None
        about, column = self.about, self._column("routes")
        if not (about.layers and about.experts and about.top_k):
            self.refuse("has routes: its metadata must say layers, experts and top_k")
        self._check_route_sizes(pc.binary_length(column).to_numpy())
        flat = np.frombuffer(b"".join(column.to_pylist()), route_type(about.experts))
        if flat.max() >= about.experts:
            self.refuse(f"routes name expert {flat.max()} of {about.experts}")
        return flat.astype(np.int16).reshape(-1, about.layers, about.top_k)

    def refuse(self, reason: str) -> NoReturn:
        """Raise with the source named."""
        raise TraceError(f"{self.source}: {reason}")

    def refuse_rows(self, bad: Bools, reason: str) -> None:
        """Raise if any row is bad, naming the first."""
        if bad.any():
            row = int(np.argmax(bad))
            place = f"prompt {self.prompt[row]}, position {self.position[row]}"
            self.refuse(f"row {row} ({place}): {reason}")

    def _check_scalars(self) -> None:
        self.refuse_rows(self.position < 0, "position must be at least 0")
        self.refuse_rows(
            ~(self.values("temperature") >= 0.0), "temperature must be at least 0"
        )

    def _check_trees(self) -> None:
        sizes = np.diff(self.nodes)
        for name in ("parent", "accepted"):
            self.refuse_rows(
                np.diff(self.lists(name)[0]) != sizes,
                f"{name} and path_prob must have one entry a node",
            )
        at = np.arange(len(self.parent)) - np.repeat(self.nodes[:-1], sizes)
        self._refuse_nodes(
            (self.parent < -1) | (self.parent >= at),
            "parents must stand before their children, and -1 is the root",
        )
        self._check_probabilities()
        self._check_accepted()

    def _check_probabilities(self) -> None:
        own = self.forest.path_prob
        above = np.where(self.forest.parent >= 0, own[self.forest.parent], 1.0)
        # Not `> 1`: that lets nan through.
        self._refuse_nodes(
            ~((own >= 0.0) & (own <= 1.0 + ROUNDING)),
            "path_prob must be within 0 and 1",
        )
        self._refuse_nodes(
            own > above * (1.0 + ROUNDING),
            "path_prob rises from parent to child; it is the product of the drafter's "
            "probabilities from the root",
        )

    def _check_accepted(self) -> None:
        forest = self.forest
        orphans = (forest.parent >= 0) & ~self.accepted[forest.parent]
        self._refuse_nodes(
            self.accepted & orphans,
            "a node is accepted and its parent is not; accepted means the whole path",
        )
        places = np.flatnonzero(self.accepted)
        _, first = np.unique(forest.family[places], return_index=True)
        again = np.zeros(len(self.accepted), bool)
        again[np.delete(places, first)] = True
        self._refuse_nodes(
            again, "two siblings are accepted, and only one token can follow"
        )

    def _check_route_sizes(self, lengths: Ints) -> None:
        about, kind = self.about, route_type(self.about.experts)
        row_bytes = about.layers * about.top_k * kind.itemsize
        self.refuse_rows(
            lengths != (np.diff(self.nodes) + 1) * row_bytes,
            f"routes must hold {row_bytes} bytes for the root and for each node "
            f"({about.layers} layers x {about.top_k} experts, {kind.name})",
        )

    def _refuse_nodes(self, bad: Bools, reason: str) -> None:
        rows = np.zeros(len(self.table), bool)
        rows[self.forest.tree[bad]] = True
        self.refuse_rows(rows, reason)

    def _column(self, name: str) -> pa.Array:
        given, kind = self.table.column(name), COLUMNS.field(name).type
        with self._typed(name, given.type, kind):
            column = given.cast(kind).combine_chunks()
        if column.null_count:
            self.refuse(f"column {name} has nulls; fill them, or leave the column out")
        return column

    @contextmanager
    def _typed(self, name: str, given: object, kind: object) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            self.refuse(f"column {name} holds {given} where {kind} is due ({error})")
