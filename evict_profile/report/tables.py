"""Cost tables on a terminal, for `show` and `diff`, which import nothing heavy."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from rich.console import Console

from evict_profile.drafting import DraftClock
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.records import differences, to_mapping
from evict_profile.report.console import Rows, error_rows, print_rows, wrapped
from evict_profile.report.numbers import MS
from evict_profile.report.pays import pays
from evict_profile.served.step import ServedStep
from evict_profile.table import (
    DATASHEET,
    MEASURED,
    Composition,
    CostTable,
    Found,
    Staircase,
    measured,
)

SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHOWN_DRAFTS = (1, 2, 3, 4, 5, 7)
LEVELS = 2
"""Folders between a table and its device's: model, and engine."""

ONE_DAY = (
    "one, and no interval contains what another day adds; two sweeps of one key, ten "
    "hours apart, differed by 8% in costs and by 1% in C(n)/C(1) in the median, by 4% "
    "at most in the latter"
)
"""For a table whose sweep began and ended on one day."""

BEFORE_AFTER = ("before", "after")


def show_table(console: Console, table: CostTable, as_json: bool = False) -> None:
    key = table.key
    facts = _origin_facts(table) | _workload_facts(table)
    if table.fit.validation:
        facts["error between the levels of the grid"] = str(table.fit.validation)
    costs = {
        "step cost": _step_rows(table),
        "accepted length at which a step of K drafts equals plain decoding": (
            break_even_rows(table)
        ),
    }
    errors = {"held-out error at the levels": error_rows(table.fit.held_out)}
    if as_json:
        records = {title: rows.records for title, rows in (costs | errors).items()}
        say(console, json_of({"key": to_mapping(key), **facts, **records}))
        return
    title = f"{table.title}, {key.graph_mode}, version {table.version}"
    say(console, wrapped(title))
    say(console, wrapped(pays(table), "  "))
    _print_parts(console, costs)
    for name, fact in facts.items():
        say(console, wrapped(f"{name}: {fact}", "  "))
    _print_parts(console, errors)


def _print_parts(console: Console, parts: dict[str, Rows]) -> None:
    for title, rows in parts.items():
        if rows.cells:
            print_rows(console, rows, title)


def break_even_rows(table: CostTable) -> Rows:
    """Step over plain decoding, drafting included; empty if that is unknown."""
    served, context = ServedStep.of(table), table.fit.domain["context"][0]
    if served.assumes_drafting:
        return Rows((), ())

    def ratio(batch: int, drafts: int) -> str:
        if not served.covers(batch, drafts + 1, context):
            return "-"
        return f"{served.ratio(batch, drafts + 1, drafts, context).value:.2f}"

    cells = [
        (batch, *(ratio(batch, drafts) for drafts in SHOWN_DRAFTS))
        for batch in served.table.axes.batch
    ]
    return Rows(("batch", *(f"K={drafts}" for drafts in SHOWN_DRAFTS)), cells)


def _origin_facts(table: CostTable) -> dict[str, str]:
    key, fit = table.key, table.fit
    if isinstance(made := table.provenance, Composition):
        return {
            "composed of": f"{made.package}, {made.rows_used} rows of "
            f"{key.moe_backend} and those of the other parts",
            "one standard deviation": f"of a step {made.error.step:.0%}, of its growth "
            f"{made.error.growth:.0%}",
        }
    made = measured(table.provenance)
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
            + ("" if (us := clock.mechanism_us) is None else f", deciding {us:.0f} us")
            for clock in drafting.batches
        )
        facts["drafting"] = f"{drafting.workload}, {drafting.engine}, {clocks}"
        facts |= _rounds(table, drafting.batches)
    return facts


def _rounds(table: CostTable, clocks: Sequence[DraftClock]) -> dict[str, str]:
    phrases = []
    for clock in clocks:
        parts_us = clock.parts_us(table.cost)
        us = np.array([timed.us for timed in clock.rounds])
        widths = ", ".join(str(timed.width) for timed in clock.rounds)
        if clock.rounds:
            rest_us = clock.fixed_us + clock.token_us * clock.drafts
            bare, whole = us / parts_us, us / (parts_us + rest_us)
            phrases.append(
                f"batch {clock.batch}, widths {widths}: {bare.min():.2f}.."
                f"{bare.max():.2f} of forward and drafting, {whole.min():.2f}.."
                f"{whole.max():.2f} with fixed time and {clock.token_us:.1f} us a draft"
            )
    return {"rounds": "; ".join(phrases)} if phrases else {}


def _step_rows(table: CostTable) -> Rows:
    cells = []
    for stairs in table.staircases:
        us, low, high = stairs.costs[:3]
        for tokens in SHOWN_TOKENS:
            if stairs.batch <= tokens < len(us):
                within = f"{_ms(low[tokens])}..{_ms(high[tokens])}"
                within = "not known" if table.origin == DATASHEET else within
                times = f"{us[tokens] / us[stairs.batch]:.2f}"
                where = (stairs.batch, stairs.context, tokens)
                cells.append((*where, _ms(us[tokens]), within, times))
    head = ("batch", "context", "tokens, all requests", "ms", "95 % interval", "x C(1)")
    return Rows(head, cells)


def _ms(latency_us: float) -> str:
    """Three digits that a program reads too: no thousands separators."""
    return MS.bare(latency_us).replace(",", "")


def found_records(tables: Sequence[Found]) -> list[dict[str, object]]:
    tables = [entry for entry in tables if entry.table]
    keys = [to_mapping(entry.table.key) for entry in tables if entry.table]
    rows = _found_rows(tables, map(str, (entry.path for entry in tables)))
    return [key | row for key, row in zip(keys, rows.records, strict=True)]


def show_found(console: Console, tables: Sequence[Found]) -> None:
    tables, refused = [t for t in tables if t.table], [t for t in tables if t.refused]
    for home, group in groupby(tables, key=_device_folder):
        items = list(group)
        names = (str(entry.path.absolute().relative_to(home)) for entry in items)
        place = str(home).removeprefix(f"{Path.cwd()}{os.sep}")
        print_rows(console, _found_rows(items, names), f"{items[0].device} in {place}")
        say(console, "")
    for entry in refused:
        say(console, wrapped(f"not a table: {entry.refused}"))


def _device_folder(found: Found) -> Path:
    above = found.path.absolute().parents
    return above[min(LEVELS, len(above) - 1)]


def _found_rows(tables: Sequence[Found], names: Iterable[str]) -> Rows:
    cells = [
        (
            name,
            table.origin if (days := entry.age_days()) is None else f"{days} d",
            _error(table),
            f"{sum(gate.passed for gate in table.gates)} of {len(table.gates)}",
        )
        for entry, name in zip(tables, names, strict=True)
        if (table := entry.table)
    ]
    return Rows(("table", "age", "error", "gates"), cells)


def _error(table: CostTable) -> str:
    unknown = table.origin != MEASURED
    return "unknown" if unknown else f"{table.fit.held_out['hinge'].median:.1%}"


def show_diff(
    console: Console, before: CostTable, after: CostTable, as_json: bool = False
) -> bool:
    lines = differences(_compared(before), _compared(after), sides=BEFORE_AFTER)
    lines += _staircase_changes(before, after)
    if as_json:
        say(console, json_of(lines))
        return bool(lines)
    for name, table in zip(BEFORE_AFTER, (before, after), strict=True):
        for caveat in table.caveats:
            say(console, wrapped(f"{name}: {caveat}", "  "))
    for line in lines or ["no difference in key, costs or error"]:
        say(console, line)
    return bool(lines)


def _compared(table: CostTable) -> dict[str, object]:
    key = {f"key {name}": value for name, value in to_mapping(table.key).items()}
    error = {"held-out median error": _error(table)}
    return {**key, **error, **_workload_facts(table)}


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
