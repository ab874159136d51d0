"""The columns of a trace as flat arrays, checked once against their schema."""

from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evict_profile.errors import DataError
from evict_profile.stats import Bools, Ints
from evict_profile.traces.schema import COLUMNS, NEEDED, TIMES, route_type
from evict_profile.traces.trace import Nodes, Routes, TraceInfo, ranges

DEFAULTS: dict[str, Any] = {
    "workload": "unnamed",
    "seed": 0,
    "temperature": 0.0,
    "context": 0,
}

ROUNDING = 1e-3
"""Relative excess over the parent's probability that half precision may cause."""


class TraceColumns:
    def __init__(self, table: pa.Table, about: TraceInfo, source: str) -> None:
        self.table, self.about, self.source = table, about, source
        if missing := [name for name in NEEDED if name not in self]:
            self.refuse(
                f"has no column {', '.join(missing)}; it needs {', '.join(NEEDED)}"
            )
        if not len(table):
            self.refuse("holds no steps; record at least one")
        if 0 < sum(name in self for name in TIMES) < len(TIMES):
            self.refuse(f"give all of {', '.join(TIMES)}, or none of them")
        self.check_rows(self.position < 0, "position must be at least 0")
        self.check_rows(
            ~(self.values("temperature") >= 0.0), "temperature must be at least 0"
        )
        self._check_trees()
        self._check_probabilities()
        self._check_accepted()

    def __contains__(self, name: str) -> bool:
        return name in self.table.column_names

    def __len__(self) -> int:
        return len(self.table)

    def values(self, name: str) -> NDArray[Any]:
        if name not in self:
            return np.full(len(self), DEFAULTS[name])
        return np.asarray(self.column(name).to_numpy(zero_copy_only=False))

    def lists(self, name: str) -> tuple[Ints, NDArray[Any]]:
        """Values per row, int64 [rows], and all values concatenated."""
        column = self.column(name)
        flat = column.flatten()
        if flat.null_count:
            self.refuse(f"column {name} has nulls within its lists; fill them")
        size = pc.list_value_length(column).to_numpy().astype(np.int64)
        return size, flat.to_numpy(zero_copy_only=False)

    def column(self, name: str) -> pa.Array:
        stored, kind = self.table.column(name), COLUMNS.field(name).type
        try:
            column = stored.cast(kind).combine_chunks()
        except pa.ArrowException as error:
            self.refuse(
                f"column {name} holds {stored.type} where {kind} is due ({error})"
            )
        if column.null_count:
            self.refuse(f"column {name} has nulls; fill them, or leave the column out")
        return column

    def refuse(self, reason: str) -> NoReturn:
        raise DataError(f"{self.source}: {reason}")

    def check_rows(self, bad: Bools, reason: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            prompt, position = (self.values(n)[row] for n in ("prompt", "position"))
            self.refuse(f"row {row} (prompt {prompt}, position {position}): {reason}")

    @cached_property
    def position(self) -> Ints:
        return self.values("position")

    @cached_property
    def size(self) -> Ints:
        return self.lists("path_prob")[0]

    @cached_property
    def nodes(self) -> Nodes:
        step, size = np.repeat(np.arange(len(self)), self.size), self.size
        above = self.lists("parent")[1].astype(np.int64)
        parent = np.where(above >= 0, above + (np.cumsum(size) - size)[step], -1)
        path_prob = self.lists("path_prob")[1].astype(np.float64)
        return Nodes(step, parent, path_prob, self.lists("accepted")[1])

    @cached_property
    def routes(self) -> Routes | None:
        """[rows + all nodes, layers, k]: each row's root before its nodes."""
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
                self.lists(name)[0] != self.size,
                f"{name} and path_prob must have one entry a node",
            )
        above = self.lists("parent")[1]
        place = ranges(0 * self.size, self.size)
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
