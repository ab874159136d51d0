"""The trace file: Parquet, one row a step, schema `evict-trace/1`.

What was recorded, on what, and the engine's clocks stand as JSON in the file's
metadata, under the key `evict-trace`; docs/reference/traces.md explains the columns. A
budget recording is a file of the same make, with columns and a key of its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evict_profile.errors import TraceError
from evict_profile.records import to_mapping
from evict_profile.table import DraftClock
from evict_profile.traces.trace import About

NEEDED = ("prompt", "position", "parent", "path_prob", "accepted")
TIMES = ("draft_us", "verify_us", "fixed_us")

COLUMNS = pa.schema(
    [
        ("workload", pa.string()),
        ("prompt", pa.int64()),
        ("seed", pa.int64()),
        ("temperature", pa.float64()),
        ("position", pa.int64()),
        ("context", pa.int64()),
        ("parent", pa.list_(pa.int16())),
        ("token", pa.list_(pa.int32())),
        ("path_prob", pa.list_(pa.float32())),
        ("accepted", pa.list_(pa.bool_())),
        ("routes", pa.large_binary()),
        ("draft_us", pa.list_(pa.float32())),
        ("verify_us", pa.float32()),
        ("fixed_us", pa.float32()),
    ]
)
"""All columns, as a recording writes them. Routes may pass 2 GB, so they are large."""


def in_todays_words(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a recording; the draft's `topk` was first written as `fan`."""
    return {"topk" if name == "fan" else name: facts[name] for name in facts}


def route_type(experts: int) -> np.dtype[Any]:
    """Integers of the routes column, little-endian."""
    return np.dtype("<u1" if experts <= 256 else "<u2")


def encode_routes(routes: NDArray[Any], experts: int) -> bytes:
    """Routes [nodes + 1, layers, top_k] of one step as the routes column holds them."""
    return np.ascontiguousarray(routes, route_type(experts)).tobytes()


@dataclass(frozen=True)
class FileFormat:
    """How a kind of recording is stored.

    Attributes:
        schema: name of the schema, in the metadata.
        key: of the metadata.
        noun: what the recording is called.
        page: the document that describes it.
        command: records one.
    """

    schema: str
    key: bytes
    noun: str
    page: str
    command: str

    def mark(
        self,
        table: pa.Table,
        about: About,
        clocks: tuple[DraftClock, ...] = (),
        **more: Any,
    ) -> pa.Table:
        """The table with the metadata of this format; `more` is added to it."""
        metadata = {
            "schema": self.schema,
            "about": to_mapping(about),
            "clocks": [to_mapping(clock) for clock in clocks],
            **more,
        }
        text = json.dumps(metadata, sort_keys=True)
        return table.replace_schema_metadata({self.key: text.encode()})

    def read(self, path: Path) -> pa.Table:
        """A file's table, unchecked."""
        if path.is_dir():
            raise TraceError(
                f"{path}: is a folder; give the {self.noun} file, which "
                f"'{self.command}' writes when its last reply is recorded"
            )
        try:
            return pq.ParquetFile(path).read()
        except FileNotFoundError as error:
            raise TraceError(
                f"{path}: is not there; record it with '{self.command}'"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise TraceError(
                f"{path}: is no whole Parquet file ({str(error).splitlines()[0]}); "
                "record or fetch it again"
            ) from error

    def metadata(self, schema: pa.Schema, source: str) -> dict[str, Any]:
        """The metadata of a table of this format."""
        try:
            metadata: dict[str, Any] = json.loads((schema.metadata or {})[self.key])
            stated = metadata["schema"]
        except (LookupError, ValueError, TypeError) as error:
            raise TraceError(
                f"{source}: does not say that it is a {self.noun}; give it the "
                f"metadata '{self.key.decode()}' with the schema '{self.schema}', as "
                f"{self.page} shows"
            ) from error
        if stated != self.schema:
            raise TraceError(
                f"{source}: has schema '{stated}', and this evict-profile reads "
                f"{self.schema}; upgrade evict-profile, or record it again"
            )
        for name in ("about", "recorded"):
            if isinstance(facts := metadata.get(name), dict):
                metadata[name] = in_todays_words(facts)
        return metadata


TRACE = FileFormat(
    "evict-trace/1",
    b"evict-trace",
    "trace",
    "docs/reference/traces.md",
    "evict-profile trace",
)
