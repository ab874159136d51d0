"""The trace file: Parquet, one row per step, schema `evict-trace/1`.

JSON metadata holds the recorder's facts and clocks; see docs/reference/traces.md.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.io import regular
from evict_profile.records import Facts, parse, to_mapping
from evict_profile.traces.trace import TraceInfo

SCHEMA = "evict-trace/1"
NAME = SCHEMA.partition("/")[0]
"""Of the metadata in a file."""
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
"""All columns. Routes may exceed 2 GB, so they are large_binary."""


def route_type(experts: int) -> np.dtype[Any]:
    return np.dtype("<u1" if experts <= 256 else "<u2")


def encode_routes(routes: NDArray[Any], experts: int) -> bytes:
    return np.ascontiguousarray(routes, route_type(experts)).tobytes()


@dataclass(frozen=True)
class Metadata:
    """Metadata of a recording; `replies` is 0 if unknown."""

    about: TraceInfo = field(default_factory=TraceInfo)
    clocks: tuple[DraftClock, ...] = ()
    recorded: Facts = field(default_factory=dict)
    replies: int = 0


def mark(table: pa.Table, metadata: Metadata) -> pa.Table:
    text = json.dumps({"schema": SCHEMA, **to_mapping(metadata)}, sort_keys=True)
    return table.replace_schema_metadata({NAME: text})


def read(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(regular(path)).read()
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: is not there; docs/reference/traces.md says how to record one"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is no trace, or is no whole Parquet file, as a trace is "
            f"({str(error).splitlines()[0]}); give a trace, or record or fetch it again"
        ) from error


def metadata_of(table: pa.Table, source: str) -> Metadata:
    try:
        stored = json.loads((table.schema.metadata or {})[NAME.encode()])
        stated = stored["schema"]
    except (LookupError, ValueError, TypeError) as error:
        raise DataError(
            f"{source}: does not say that it is of schema '{SCHEMA}'; give it the "
            f"metadata '{NAME}', as docs/reference/traces.md shows"
        ) from error
    if stated != SCHEMA:
        raise DataError(
            f"{source}: has schema '{stated}', and this evict-profile reads {SCHEMA}; "
            "upgrade evict-profile, or record it again"
        )
    return parse(Metadata, stored, source, extra_keys=True)
