"""Cost tables on a terminal, for `show` and `diff`, which import nothing heavy."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from evict_profile.io import say
from evict_profile.records import differences, to_mapping
from evict_profile.report.console import Rows, error_rows, print_rows
from evict_profile.report.numbers import three_digits
from evict_profile.table import (
    DATASHEET,
    MEASURED,
    PLACE,
    Composition,
    CostTable,
    Found,
    MarginalCost,
    ServedStep,
    ServedSteps,
    Slope,
    Staircase,
)

SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHOWN_DRAFTS = (1, 2, 3, 4, 5, 7)
KEY_FIELDS = ("model", "dtype", "tp", "ep", "engine", "engine_version")
SHELF_FIELDS = ("age", "error", "gates", "file")

ONE_DAY = (
    "one, and no interval contains what another day adds; two sweeps of one key, ten "
    "hours apart, differed by 8% in costs and by 1% in C(n)/C(1) in the median, by 4% "
    "at most in the latter"
)
"""For a table whose sweep began and ended on one day."""

BEFORE_AFTER = ("before", "after")


def marginal_rows(costs: Iterable[MarginalCost]) -> Rows:
    return Rows.of(
        costs,
        {
            "one more": lambda cost: cost.name,
            "us": lambda cost: three_digits(cost.us),
            "95 % interval": lambda cost: "..".join(
                map(three_digits, cost.us_interval)
            ),
            "between": _places,
        },
    )


def show_table(console: Console, table: CostTable) -> None:
    key = table.key
    say(
        console,
        f"{key.model} on {key.where}, {key.dtype}, {key.engine} "
        f"{key.engine_version}, tp {key.tp}, {key.graph_mode}, version {table.version}",
    )
    facts = _origin_facts(table) | _workload_facts(table)
    if known := ServedStep.of(table).overheads:
        facts["overheads"] = str(known)
    if table.fit.validation:
        facts["error between the levels of the grid"] = str(table.fit.validation)
    for name, fact in facts.items():
        say(console, f"{name}: {fact}")
    for statement in table.reuse:
        say(console, str(statement))
    print_rows(console, error_rows(table.fit.held_out), "held-out error at the levels")
    if table.fit.marginal:
        title = "what one more costs a forward"
        print_rows(console, marginal_rows(table.fit.marginal), title)
    title = "cost of the forward alone" if known else "step cost"
    print_rows(console, _step_rows(table), title)
    if (rows := break_even_rows(table)).cells:
        title = "accepted length at which a step of K drafts equals plain decoding"
        print_rows(console, rows, title)


def break_even_rows(table: CostTable) -> Rows:
    """Step over plain decoding by batch and draft length, drafting included; empty if
    drafting is unknown."""
    served, context = ServedStep.of(table), table.fit.domain["context"][0]
    if served.assumes_drafting:
        return Rows((), ())

    def ratio(batch: int, drafts: int) -> str:
        if not served.covers(batch, drafts + 1, context):
            return "-"
        return f"{served.ratio(batch, drafts + 1, drafts, context).value:.2f}"

    cells = [
        (batch, *(ratio(batch, drafts) for drafts in SHOWN_DRAFTS))
        for batch in table.axes.batch
    ]
    return Rows(("batch", *(f"K={drafts}" for drafts in SHOWN_DRAFTS)), cells)


def _origin_facts(table: CostTable) -> dict[str, str]:
    made, key, fit = table.provenance, table.key, table.fit
    if isinstance(made, Composition):
        return {
            "composed of": f"{made.package}, {made.rows_used} rows of "
            f"{key.moe_backend} and those of the other parts",
            "one standard deviation": f"of a step {made.error.step:.0%}, of its growth "
            f"{made.error.growth:.0%}",
            "fixed time": made.fixed_from,
        }
    if isinstance(made, ServedSteps):
        return {
            "probed": f"{made.samples} waves of {made.cells} settings, from outside"
        }
    if table.origin == DATASHEET:
        return {"computed": made.caveats[0].removeprefix("costs are computed ")}
    one_day = made.started[:10] == made.finished[:10]
    scaling = f"; {made.scaling}" * (fit.layer_scale > 1.0)
    facts = {
        "measured": f"{made.started}, {made.samples} samples of {made.cells} cells in "
        f"{made.measured_minutes} min",
        "MoE layers": f"{fit.measured_layers} of {table.model.moe_layers}, costs "
        f"scaled by {fit.layer_scale:g}{scaling}",
        "sessions": str(made.sessions or ""),
        "days": ONE_DAY * one_day,
    }
    return {name: fact for name, fact in facts.items() if fact}


def _workload_facts(table: CostTable) -> dict[str, str]:
    activation, acceptance = table.activation, table.acceptance
    drafting = table.drafting
    facts = {"activation": activation.workload}
    facts |= dict.fromkeys(("acceptance", "drafting"), "not measured")
    if activation.by_batch:
        batches = ", ".join(str(curve.batch) for curve in activation.by_batch)
        facts["activation"] += f", batch {batches}"
    if acceptance:
        raw, calibrated = (acceptance.held_out[k].ece for k in ("raw", "calibrated"))
        facts["acceptance"] = (
            f"{acceptance.workload}, {acceptance.steps} trees, calibration error on "
            f"unseen text {raw:.3f}, calibrated {calibrated:.3f}"
        )
    if drafting:
        clocks = "; ".join(
            f"batch {clock.batch}: {len(clock.draft_us) - 1} levels in "
            f"{clock.draft_us[-1] / 1e3:.2f} ms, {clock.fixed_us / 1e3:.2f} ms fixed"
            for clock in drafting.batches
        )
        facts["drafting"] = f"{drafting.workload}, {drafting.engine}, {clocks}"
    return facts


def _step_rows(table: CostTable) -> Rows:
    cells = []
    for stairs in table.staircases:
        ms, low, high = (us / 1e3 for us in stairs.costs[:3])
        for tokens in SHOWN_TOKENS:
            if stairs.batch <= tokens < len(ms):
                within = f"{low[tokens]:.2f}..{high[tokens]:.2f}"
                within = "not known" if table.origin == DATASHEET else within
                times = f"{ms[tokens] / ms[stairs.batch]:.2f}"
                where = (stairs.batch, stairs.context, tokens)
                cells.append((*where, f"{ms[tokens]:.2f}", within, times))
    interval = "95 % interval"
    return Rows(("batch", "context", "tokens", "ms", interval, "x C(1)"), cells)


def show_found(console: Console, tables: Sequence[Found]) -> None:
    """A line per table, then files that could not be read."""
    whole = [(found, found.table) for found in tables if found.table]
    cells = [
        (
            found.device,
            *(getattr(table.key, name) for name in KEY_FIELDS),
            table.origin if (days := found.age_days()) is None else f"{days} d",
            _error(table),
            f"{sum(gate.passed for gate in table.gates)} of {len(table.gates)}",
            str(found.path).removeprefix(f"{Path.cwd()}{os.sep}"),
        )
        for found, table in whole
    ]
    print_rows(console, Rows(("device", *KEY_FIELDS, *SHELF_FIELDS), cells))
    for found, table in whole:
        for statement in table.reuse:
            say(console, f"{found.path}: {statement}")
    for found in tables:
        if found.refused:
            say(console, f"not a table: {found.refused}")


def _error(table: CostTable) -> str:
    unknown = table.origin != MEASURED
    return "-" if unknown else f"{table.fit.held_out['hinge'].median:.1%}"


def show_diff(console: Console, before: CostTable, after: CostTable) -> bool:
    """Print differences of two tables; False if there are none."""
    lines = differences(_compared(before), _compared(after), sides=BEFORE_AFTER)
    lines += _staircase_changes(before, after)
    for name, table in zip(BEFORE_AFTER, (before, after), strict=True):
        for caveat in table.caveats:
            say(console, f"{name}: {caveat}")
    for line in lines:
        say(console, line)
    return bool(lines)


def _compared(table: CostTable) -> dict[str, object]:
    key = {f"key {name}": value for name, value in to_mapping(table.key).items()}
    known = {"overheads": str(ServedStep.of(table).overheads or "not known")}
    error = {"held-out median error": _error(table)}
    return {**key, **error, **known, **_workload_facts(table)}


def _staircase_changes(before: CostTable, after: CostTable) -> Iterator[str]:
    old, new = (
        {(stairs.batch, stairs.context): stairs for stairs in table.staircases}
        for table in (before, after)
    )
    for place in sorted(old.keys() | new.keys()):
        where = "batch {}, context {}: step cost".format(*place)
        if not (place in old and place in new):
            yield f"{where} only {BEFORE_AFTER[place in new]}"
        elif change := _change(old[place], new[place]):
            yield f"{where} {change}"


def _change(before: Staircase, after: Staircase) -> str:
    costs = (stairs.step_cost_us[before.batch :] for stairs in (before, after))
    changes = np.array([new / old - 1.0 for old, new in zip(*costs, strict=False)])
    if not changes.any():
        return ""
    return (
        f"{np.median(changes):+.1%} in the median, {changes.min():+.1%}.."
        f"{changes.max():+.1%} over {len(changes)} sizes"
    )


def _places(slope: Slope) -> str:
    ends = [(axis, slope.start[axis], slope.end[axis]) for axis in PLACE]
    return ", ".join(
        f"{axis} {start:g}" + (f"..{end:g}" if end != start else "")
        for axis, start, end in ends
    )
