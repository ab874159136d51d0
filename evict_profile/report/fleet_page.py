"""The page of a fleet: every pair side by side, and why some are missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from evict_profile.fleet.folder import FleetFolder, Outcome
from evict_profile.fleet.plan import FleetPair, FleetPlan
from evict_profile.fleet.spec import AXES
from evict_profile.report.render import render
from evict_profile.report.tables import Rows
from evict_profile.table import CostTable

MAX_WIDTHS = 12


def fleet_page(folder: FleetFolder, plan: FleetPlan) -> str:
    """The whole document, from the tables that were published."""
    outcomes = folder.outcomes()
    done = [p for p in plan.pairs if _state(outcomes, p) == "published"]
    tables = {
        pair.name: CostTable.load(Path(outcomes[pair.name].table)) for pair in done
    }
    widths = shown_widths(list(tables.values()))
    return render(
        "fleet.html.j2",
        title=f"Fleet {plan.fleet}: what verification costs",
        plan=plan,
        sha256=plan.sha256,
        widths=widths,
        done=done,
        tables=tables,
        outcomes=outcomes,
        ratios={name: ratios(table, widths) for name, table in tables.items()},
        gates={n: {g.name: g.message for g in t.gates} for n, t in tables.items()},
        missing=missing_rows(outcomes, [p for p in plan.pairs if p not in done]),
    )


def shown_widths(tables: Sequence[CostTable]) -> list[int]:
    """Widths that any table prices at batch 1: all of them, or some spread evenly."""
    every = sorted({n for table in tables for n in table.axes.width if n > 1})
    step = -(-len(every) // MAX_WIDTHS)
    return every[:: -max(1, step)][::-1]


def ratios(table: CostTable, widths: Sequence[int]) -> list[float | None]:
    """C(n)/C(1) at the smallest batch and context; None where n was not measured."""
    batch, context = min(table.axes.batch), min(table.axes.context)
    cost_us = table.price(batch, context).step_cost_us
    base_us = cost_us[min(table.axes.width) * batch]
    return [
        float(cost_us[n * batch] / base_us) if n * batch < len(cost_us) else None
        for n in widths
    ]


def missing_rows(outcomes: Mapping[str, Outcome], pairs: Sequence[FleetPair]) -> Rows:
    """What was refused, failed, or not measured yet."""
    cells = []
    for pair in pairs:
        ended = outcomes.get(pair.name)
        told = (ended.state, ended.why) if ended else ("open", "not measured yet")
        cells.append([*(pair.names[axis] for axis in AXES), *told])
    return Rows((*AXES, "state", "why"), cells)


def _state(outcomes: Mapping[str, Outcome], pair: FleetPair) -> str:
    return outcomes[pair.name].state if pair.name in outcomes else "open"
