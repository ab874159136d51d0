"""Many tables on one page: a fleet's, or all composed ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from evict_profile.report.console import Rows
from evict_profile.report.render import render
from evict_profile.table import CostTable

MAX_WIDTHS = 12
WIDE = 32
Outcomes = Mapping[str, Mapping[str, str]]
"""Per name the path of its "table", or "why" there is none."""


def many_tables_page(title: str, outcomes: Outcomes, home: Path) -> str:
    """Tables by width and by device, their errors, and why others are missing. Reports
    lie beside the page in folders of the tables' names."""
    paths = {name: o["table"] for name, o in outcomes.items() if "table" in o}
    tables = {name: CostTable.load(Path(path)) for name, path in paths.items()}
    missing = [(name, o["why"]) for name, o in outcomes.items() if "why" in o]
    report = "{}/report.html"
    return render(
        "many.html.j2",
        title=title,
        counts=counts(outcomes),
        widths=(widths := shown_widths(list(tables.values()))),
        tables=tables,
        ratios={name: ratios(table, widths) for name, table in tables.items()},
        reports={
            n: report.format(n) for n in tables if (home / report.format(n)).is_file()
        },
        quality=Rows.of(
            tables.items(),
            {
                "pair": lambda item: item[0],
                "held-out error": lambda item: item[1].fit.held_out["hinge"],
                "slope in U": lambda item: "".join(
                    g.message for g in item[1].gates if g.name.endswith("slope")
                ),
                "table": lambda item: paths[item[0]],
            },
        ),
        wide=WIDE,
        by_device=by_device(list(tables.values())),
        missing=Rows(("not published", "why"), missing),
    )


def counts(outcomes: Outcomes) -> str:
    done = sum("table" in outcome for outcome in outcomes.values())
    return f"{done} of {len(outcomes)} pairs have a table"


def shown_widths(tables: Sequence[CostTable]) -> list[int]:
    """Widths of any table, or some of them spaced evenly."""
    every = sorted({n for table in tables for n in table.axes.width if n > 1})
    step = -(-len(every) // MAX_WIDTHS)
    return every[:: -max(1, step)][::-1]


def ratios(table: CostTable, widths: Sequence[int]) -> list[float | None]:
    """C(n)/C(1) at the smallest batch and context; None where n is not covered."""
    batch, context = min(table.axes.batch), min(table.axes.context)
    cost_us = table.step_cost_us(batch, context)
    tokens = (batch * width for width in widths)
    return [
        float(cost_us[t] / cost_us[batch]) if t < len(cost_us) else None for t in tokens
    ]


def by_device(tables: Sequence[CostTable]) -> Rows:
    """C(WIDE)/C(1) by what is served, then by device: the least of its kernels."""
    devices = sorted({table.key.where for table in tables})
    least: dict[tuple[str, str, str], dict[str, float]] = {}
    for table in tables:
        key, [times] = table.key, ratios(table, [WIDE])
        if times is not None:
            own = least.setdefault((key.model, key.engine, key.dtype), {})
            own[key.where] = min(times, own.get(key.where, times))
    rows = [(*of, *(own.get(d) for d in devices)) for of, own in sorted(least.items())]
    return Rows(("model", "engine", "experts", *devices), rows)
