"""The file of a budget recording: Parquet, one row a step, schema `evict-budgets/1`.

What was recorded, on what, the settings and the engine's clocks stand as JSON in the
file's metadata, under the key `evict-budgets`. See
docs/how-to/budgets.md for the columns.
"""

import pyarrow as pa

from evict_profile.traces.schema import Form

SCHEMA = "evict-budgets/1"
KEY = b"evict-budgets"
BUDGETS = Form(
    SCHEMA,
    KEY,
    "budget recording",
    "docs/how-to/budgets.md",
    "evict-profile trace-budgets",
)

COLUMNS = pa.schema(
    [
        ("rule", pa.string()),
        ("budget", pa.int64()),
        ("workload", pa.string()),
        ("prompt", pa.int64()),
        ("given", pa.bool_()),
        ("position", pa.int64()),
        ("context", pa.int64()),
        ("verified", pa.int64()),
        ("union", pa.float64()),
        ("committed", pa.int64()),
        ("kl", pa.list_(pa.float32())),
        ("agrees", pa.list_(pa.bool_())),
        ("loss", pa.list_(pa.float32())),
        ("plain_loss", pa.list_(pa.float32())),
    ]
)
