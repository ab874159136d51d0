"""The trace file: Parquet, one row a step, schema `evict-trace/1`.

What was recorded, on what, and the engine's clocks stand as JSON in the file's
metadata, under the key `evict-trace`. See
docs/reference/traces.md for the columns.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evict_profile.traces.trace import About, Clock


@dataclass(frozen=True)
class Form:
    """How a kind of recording is marked.

    Attributes:
        schema: of the file.
        key: of its metadata.
        noun: what it is called.
        page: the document that says what is in it.
        command: which records one.
    """

    schema: str
    key: bytes
    noun: str
    page: str
    command: str


SCHEMA = "evict-trace/1"
KEY = b"evict-trace"
TRACE = Form(SCHEMA, KEY, "trace", "docs/reference/traces.md", "evict-profile trace")
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


def route_type(experts: int) -> np.dtype[Any]:
    """Integers of the routes column, little-endian."""
    return np.dtype("<u1" if experts <= 256 else "<u2")


def marked(
    table: pa.Table,
    about: About,
    clocks: tuple[Clock, ...],
    form: Form = TRACE,
    **more: Any,
) -> pa.Table:
    """The table with the metadata that makes it a trace, and what else to note."""
    notes = {
        "schema": form.schema,
        "about": asdict(about),
        "clocks": [asdict(clock) for clock in clocks],
        **more,
    }
    text = json.dumps(notes, sort_keys=True)
    return table.replace_schema_metadata({form.key: text.encode()})
