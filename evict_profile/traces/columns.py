"""The columns of a recording as flat arrays, checked once against their schema."""

from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evict_profile.errors import TraceError
from evict_profile.stats import Bools, Ints


class Columns:
    """The columns of one table. Rows are steps; lists lie end to end, row by row."""

    def __init__(
        self,
        table: pa.Table,
        schema: pa.Schema,
        source: str,
        needed: tuple[str, ...],
        named_by: tuple[str, ...],
    ) -> None:
        """Check that there are rows, and all columns that are needed.

        Args:
            schema: types to which columns are cast.
            source: names the table in messages.
            named_by: columns that name a row in messages.
        """
        self.table, self.schema, self.source = table, schema, source
        self._named_by = named_by
        if missing := [name for name in needed if name not in self]:
            self.refuse(
                f"has no column {', '.join(missing)}; it needs {', '.join(needed)}"
            )
        if not len(table):
            self.refuse("holds no steps; record at least one")

    def __contains__(self, name: str) -> bool:
        return name in self.table.column_names

    def __len__(self) -> int:
        return len(self.table)

    def values(self, name: str) -> NDArray[Any]:
        """One value a row."""
        return np.asarray(self.column(name).to_numpy(zero_copy_only=False))

    def lists(self, name: str) -> tuple[Ints, NDArray[Any]]:
        """Where each row begins in the flat values, int64 [rows + 1]; and those."""
        column = self.column(name)
        start = np.zeros(len(column) + 1, np.int64)
        np.cumsum(pc.list_value_length(column).to_numpy(), out=start[1:])
        flat = column.flatten()
        if flat.null_count:
            self.refuse(f"column {name} has nulls within its lists; fill them")
        return start, flat.to_numpy(zero_copy_only=False)

    def column(self, name: str) -> pa.Array:
        """A column in the type of the schema."""
        stored, kind = self.table.column(name), self.schema.field(name).type
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
        """Raise a TraceError that names the source."""
        raise TraceError(f"{self.source}: {reason}")

    def check_rows(self, bad: Bools, reason: str) -> None:
        """Raise a TraceError that names the first bad row, if there is one."""
        if bad.any():
            row = int(np.argmax(bad))
            names = (f"{name} {self.values(name)[row]}" for name in self._named_by)
            self.refuse(f"row {row} ({', '.join(names)}): {reason}")
