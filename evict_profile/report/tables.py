"""One way to print a table, and cost tables on a terminal.

`show` and `diff` answer at once: they import rich and the table, and nothing heavy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from evict_profile.io import say
from evict_profile.records import differences, to_mapping
from evict_profile.stats import ErrorSummary
from evict_profile.table import (
    PLACE,
    Composition,
    CostTable,
    Found,
    MarginalCost,
    Slope,
    Staircase,
)

SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
UNLIMITED = 10_000
KEY_FIELDS = ("model", "dtype", "tp", "ep", "engine", "engine_version")

T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """A table of text, for a page or a terminal."""

    head: Sequence[str]
    cells: Sequence[Sequence[object]]

    @classmethod
    def of(
        cls, items: Iterable[T], columns: Mapping[str, Callable[[T], object]]
    ) -> "Rows":
        """One row an item; each column is a name and what it shows of an item."""
        cells = [[show(item) for show in columns.values()] for item in items]
        return cls(tuple(columns), cells)


def print_rows(console: Console, rows: Rows, title: str = "") -> None:
    """Print a table as wide as it is; nothing is folded, cut off or read as markup."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    if title:
        say(console, title)
    for number, name in enumerate(rows.head):
        grid.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    for row in rows.cells:
        grid.add_row(*(Text(str(cell)) for cell in row))
    options = console.options.update(width=UNLIMITED)
    grid.width = Measurement.get(console, options, grid).maximum
    console.print(grid, soft_wrap=True)


def error_rows(
    errors: Mapping[str, ErrorSummary], names: Mapping[str, str] | None = None
) -> Rows:
    """Held-out errors of the models of cost, the best first."""
    return Rows.of(
        sorted(errors.items(), key=lambda item: item[1].median),
        {
            "model of the cost": lambda item: (names or {}).get(item[0], item[0]),
            "median": lambda item: f"{item[1].median:.1%}",
            "p90": lambda item: f"{item[1].p90:.1%}",
            "largest": lambda item: f"{item[1].max:.1%}",
        },
    )


def marginal_rows(costs: Iterable[MarginalCost]) -> Rows:
    """What one more of something costs a forward, and between which places."""
    return Rows.of(
        costs,
        {
            "one more": lambda cost: cost.name,
            "us": lambda cost: _three_digits(cost.us),
            "95 % interval": lambda cost: "..".join(
                map(_three_digits, cost.us_interval)
            ),
            "between": _places,
        },
    )


def show_table(console: Console, table: CostTable) -> None:
    """A table on one screen: key, how sure it is, and its staircases."""
    key = table.key
    say(
        console,
        f"{key.model} on {key.where}, {key.dtype}, {key.engine} "
        f"{key.engine_version}, {key.graph_mode}, version {table.version}",
    )
    say(console, _origin_fact(table))
    for statement in table.reuse:
        say(console, str(statement))
    if table.fit.validation:
        say(console, f"error between the levels of the grid: {table.fit.validation}")
    print_rows(console, error_rows(table.fit.held_out), "held-out error at the levels")
    for fact in workload_facts(table):
        say(console, fact)
    if table.fit.marginal:
        title = "what one more costs a forward"
        print_rows(console, marginal_rows(table.fit.marginal), title)
    for stairs in table.staircases:
        title = f"{_where(stairs)}: step cost"
        rows = _staircase_rows(stairs, table.interval_percent)
        print_rows(console, rows, title)


def _origin_fact(table: CostTable) -> str:
    made = table.provenance
    if isinstance(made, Composition):
        return (
            f"composed of {made.package}: {made.rows_used} rows of "
            f"{table.key.moe_backend} and those of the other parts; a step's price is "
            f"uncertain by {made.error.step:.0%}, growth by "
            f"{made.error.growth:.0%} (one standard deviation); fixed time: "
            f"{made.fixed_from}"
        )
    stop = f"\nstop rule: {made.precision}" if made.precision else ""
    return (
        f"measured {made.started}, {made.samples} samples of {made.cells} cells "
        f"in {made.measured_minutes} min, {table.fit.measured_layers} of "
        f"{table.model.moe_layers} MoE layers (costs scaled by "
        f"{table.fit.layer_scale:g}){stop}"
    )


def workload_facts(table: CostTable) -> tuple[str, ...]:
    """What a table knows of a drafter on a workload, one line each."""
    activation = table.activation
    batches = ", ".join(str(curve.batch) for curve in activation.by_batch)
    return (
        f"activation: {activation.workload}"
        + (f", batch {batches}" if batches else ""),
        f"acceptance: {_acceptance_fact(table)}",
        f"drafting: {_drafting_fact(table)}",
    )


def show_shelf(console: Console, tables: Sequence[Found]) -> None:
    """What a search path holds: a line a table, then what could not be read."""
    columns: dict[str, Callable[[Found], object]] = {
        "device": lambda found: found.device,
        **{name: _key_field(name) for name in KEY_FIELDS},
        "age": _age,
        "error": lambda f: f"{_table(f).fit.held_out['hinge'].median:.1%}",
        "gates": _gates,
        "file": lambda found: found.path.relative_to(found.folder),
    }
    whole = [found for found in tables if found.table]
    print_rows(console, Rows.of(whole, columns))
    for found in whole:
        for statement in _table(found).reuse:
            say(console, f"{found.path}: {statement}")
    for found in tables:
        if found.refused:
            say(console, f"not a table: {found.refused}")


def _key_field(name: str) -> Callable[[Found], object]:
    return lambda found: getattr(_table(found).key, name)


def _table(found: Found) -> CostTable:
    assert found.table, "only tables are shown"
    return found.table


def _age(found: Found) -> str:
    days = found.age_days()
    return "composed" if days is None else f"{days} d"


def _gates(found: Found) -> str:
    gates = _table(found).gates
    return f"{sum(gate.passed for gate in gates)} of {len(gates)}"


def show_diff(console: Console, before: CostTable, after: CostTable) -> bool:
    """What differs between two tables; False when nothing does."""
    keys = (to_mapping(before.key), to_mapping(after.key))
    facts = zip(workload_facts(before), workload_facts(after), strict=True)
    errors = [table.fit.held_out["hinge"].median for table in (before, after)]
    lines = [
        *(f"key {fact}" for fact in differences(*keys)),
        *_staircase_changes(before, after),
        *(f"{old} -> {new}" for old, new in facts if old != new),
    ]
    if errors[0] != errors[1]:
        lines.append(f"held-out median error: {errors[0]:.1%} -> {errors[1]:.1%}")
    for name, table in (("first", before), ("second", after)):
        for caveat in table.caveats:
            say(console, f"{name} table: {caveat}")
    for line in lines:
        say(console, line)
    return bool(lines)


def _acceptance_fact(table: CostTable) -> str:
    acceptance = table.acceptance
    if acceptance is None:
        return "not measured"
    raw, calibrated = (acceptance.held_out[k].ece for k in ("raw", "calibrated"))
    return (
        f"{acceptance.workload}, {acceptance.steps} trees, calibration error on unseen "
        f"text {raw:.3f}, calibrated {calibrated:.3f}"
    )


def _drafting_fact(table: CostTable) -> str:
    drafting = table.drafting
    if drafting is None:
        return "not measured"
    clocks = "; ".join(
        f"batch {clock.batch}: {len(clock.draft_us) - 1} levels in "
        f"{clock.draft_us[-1] / 1e3:.2f} ms, {clock.fixed_us / 1e3:.2f} ms fixed"
        for clock in drafting.batches
    )
    return f"{drafting.workload}, {drafting.engine}, {clocks}"


def _staircase_rows(stairs: Staircase, percent: int) -> Rows:
    cost, low, high = stairs.step_cost_us, stairs.low_us, stairs.high_us
    return Rows.of(
        [tokens for tokens in SHOWN_TOKENS if stairs.batch <= tokens < len(cost)],
        {
            "tokens": lambda t: t,
            "ms": lambda t: f"{cost[t] / 1e3:.2f}",
            f"{percent} % interval": lambda t: (
                f"{low[t] / 1e3:.2f}..{high[t] / 1e3:.2f}"
            ),
            "x one each": lambda t: f"{cost[t] / cost[stairs.batch]:.2f}",
        },
    )


def _places(slope: Slope) -> str:
    """ "tokens 64, union 8..128, context 512, batch 1"."""
    ends = [(axis, slope.start[axis], slope.end[axis]) for axis in PLACE]
    return ", ".join(
        f"{axis} {start:g}" + (f"..{end:g}" if end != start else "")
        for axis, start, end in ends
    )


def _three_digits(us: float) -> str:
    return f"{us:,.0f}" if abs(us) >= 100.0 else f"{us:.3g}"


def _where(stairs: Staircase) -> str:
    return f"batch {stairs.batch}, context {stairs.context}"


def _staircase_changes(before: CostTable, after: CostTable) -> Iterator[str]:
    old, new = (
        {_where(stairs): stairs for stairs in table.staircases}
        for table in (before, after)
    )
    for where, stairs in old.items():
        if where not in new:
            yield f"{where}: only in the first table"
        elif change := _change(stairs, new[where]):
            yield f"{where}: step cost {change}"
    for where in new:
        if where not in old:
            yield f"{where}: only in the second table"


def _change(before: Staircase, after: Staircase) -> str:
    """How costs changed; empty where none did."""
    costs = (stairs.step_cost_us[before.batch :] for stairs in (before, after))
    changes = np.array([new / old - 1.0 for old, new in zip(*costs, strict=False)])
    if not changes.any():
        return ""
    return (
        f"{np.median(changes):+.1%} in the median, {changes.min():+.1%}.."
        f"{changes.max():+.1%} over {len(changes)} sizes"
    )
