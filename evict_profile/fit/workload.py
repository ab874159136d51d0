"""What a drafter brings on a workload, put into a table: prices at the measured unions.

The fit stays as it was; what changes is the union at which its prices are read. The
bootstrap replicates behind an interval are not in a table, so each price keeps the
relative interval that it had: the same errors of the same fit, a few experts further.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from evict_profile.cost_model import ForwardCost, padded_tokens
from evict_profile.errors import TableError
from evict_profile.fit.export import next_version, rounded
from evict_profile.fit.fitted import cost_of, samples_of
from evict_profile.io import make_folder, write_atomically
from evict_profile.table import (
    Acceptance,
    ActivationCurve,
    CostTable,
    Drafting,
    Staircase,
)


def with_workload(
    table: CostTable,
    acceptance: Acceptance | None,
    growth: ActivationCurve,
    drafting: Drafting | None,
) -> CostTable:
    """The table with a workload in it, all staircases read at its growth.

    Where the workload has no clock of drafting, the table keeps its own.

    Raises:
        TableError: the growth ends before the table's widest step.
    """
    _require_growth(table, growth)
    cost = cost_of(table).forward
    ladder = table.axes.ladder
    return replace(
        table,
        staircases=tuple(_read_at(s, cost, growth, ladder) for s in table.staircases),
        activation=growth,
        acceptance=acceptance,
        drafting=drafting or table.drafting,
    )


def export_workload(
    table: CostTable, path: Path, tables: Path | None = None
) -> tuple[CostTable, Path]:
    """Save a table as the next version after the one at `path`, which it was made from.

    Into the same folder, or into its place in a tree of tables. The samples are put
    beside it, so that it can be refitted by itself. No file that is there is
    overwritten, and the table is written last.

    Raises:
        TableError: the samples beside `path` are missing or not those of the table.
        StoreError: the folder cannot be written.
    """
    content = samples_of(path, table).read_bytes()
    home = (tables / table.relative_path).parent if tables else path.parent
    make_folder(home)
    version = next_version(home, table.axes)
    exported, samples = home / f"{version}.json", home / f"{version}.parquet"
    write_atomically(samples, lambda place: place.write_bytes(content))
    table = replace(table, version=version)
    write_atomically(exported, lambda place: table.save(place))
    return table, exported


def _read_at(
    stairs: Staircase,
    cost: ForwardCost,
    growth: ActivationCurve,
    ladder: tuple[int, ...],
) -> Staircase:
    asked = np.arange(len(stairs.step_cost_us))
    tokens = padded_tokens(asked, stairs.batch, ladder)
    union = growth.at(tokens, stairs.batch)
    step_cost_us = cost.price(tokens, union, stairs.context, stairs.batch)
    low, high = (
        step_cost_us * np.array(bound) / np.array(stairs.step_cost_us)
        for bound in (stairs.low_us, stairs.high_us)
    )
    return replace(
        stairs,
        step_cost_us=rounded(step_cost_us),
        low_us=rounded(low),
        high_us=rounded(high),
    )


def _require_growth(table: CostTable, growth: ActivationCurve) -> None:
    reach = len(growth.union) - 1
    if reach < table.axes.max_tokens:
        raise TableError(
            f"the union growth of '{growth.workload}' ends at {reach} tokens, and the "
            f"table prices {table.axes.max_tokens}; measure it further, or continue it "
            "as the table's own"
        )
