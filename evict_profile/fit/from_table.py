"""A table and the samples beside it, as the fitted run that they came from."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd

from evict_profile.errors import TableError
from evict_profile.fit.export import file_sha256
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.hinge import CostModel, points_of
from evict_profile.pricing import RampCost, Term
from evict_profile.signed import Facts
from evict_profile.sweep.store import Header, history
from evict_profile.table import CostTable, TermCost, files_of, load_table


def fitted_of_table(table_path: Path) -> tuple[Fitted, CostTable]:
    """Rebuild what a table was made from; the cost is the table's own, not a refit.

    Raises:
        TableError: the table is damaged, or its samples are missing or not those
            that it was made from.
        ConfigError: a field of the table is missing or of the wrong kind.
    """
    table = load_table(table_path)
    frame = pd.read_parquet(samples_of(table_path, table))
    timed = {cell: values for cell, values in history(frame).items() if values}
    return Fitted(_header(table), frame, points_of(timed), cost_of(table)), table


def cost_of(table: CostTable) -> CostModel:
    """The cost model of a table's fit."""
    return CostModel(
        table.model,
        table.fit.measured_layers,
        _ramp_cost(table.fit.layers),
        _ramp_cost(table.fit.ends),
    )


def samples_of(table_path: Path, table: CostTable) -> Path:
    """The file of samples beside a table.

    Raises:
        TableError: it is missing, or is not what the table was made from.
    """
    path = files_of(table_path)[1]
    if not path.is_file():
        raise TableError(
            f"{path}: is missing, and holds the table's samples; put the file "
            f"that came with {table_path.name} back beside it"
        )
    if file_sha256(path) != table.provenance.samples_sha256:
        raise TableError(
            f"{path}: is not the file that {table_path.name} was made from (its "
            "sha256 differs); fetch the two together again"
        )
    return path


def _header(table: CostTable) -> Header:
    made = table.provenance
    opened: Facts = {
        "ladder": list(table.axes.ladder),
        "bandwidth_gbps": made.bandwidth_gbps,
        "bytes_per_expert": table.model.bytes_per_expert,
        "dtype_reason": made.dtype_reason,
    }
    return Header(
        model=table.model,
        sweep=made.sweep,
        fingerprint=made.fingerprint,
        opened=opened,
        union_test=made.union_test,
        scaling_test=made.scaling_test,
        shard="1/1",
        started_unix=datetime.fromisoformat(made.started).timestamp(),
    )


def _ramp_cost(terms: tuple[TermCost, ...]) -> RampCost:
    ramps = tuple(
        Term(t.feature, t.low, float("inf") if t.high is None else t.high)
        for t in terms
    )
    return RampCost(ramps, np.array([t.us_per_unit for t in terms]))
