"""The page on which a reader chooses a table and finds the fastest draft length.

Its script looks up a step's time over plain decoding, by table, batch and K, and
divides the accepted length by it. Of an estimated table it shows break-evens alone, by
which `advise` judges.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from evict_profile.advice.advise import Advisor
from evict_profile.advice.lengths import LONGEST, REJECTION_GROWTH, of_rate
from evict_profile.advice.plan import Range
from evict_profile.advice.steps import OfEstimate
from evict_profile.errors import ConfigError
from evict_profile.integrations.exporters import ENGINES
from evict_profile.io import say, write_text
from evict_profile.report.render import render
from evict_profile.served.step import ServedStep
from evict_profile.stats import WORTHWHILE, Estimate
from evict_profile.table import CostTable, Found
from evict_profile.table.store import newest_of

BATCHES = tuple(2**i for i in range(10))


def write_explore(console: Console, found: Sequence[Found], out: Path) -> None:
    for refused in filter(None, (entry.refused for entry in found)):
        say(console, f"not a table: {refused}")
    tables = [entry.table for entry in found if entry.table]
    if not tables:
        raise ConfigError(
            f"{out}: not written, since no cost table was found; name others, and "
            "report served tables one by one"
        )
    write_text(explore_page(tables), out)
    say(console, f"page: {out}")


def explore_page(tables: Iterable[CostTable]) -> str:
    """One HTML file with a script, of the newest table of each key.

    Raises:
        ConfigError: a table covers no draft at any batch.
    """
    data = {
        "growth": REJECTION_GROWTH,
        "worthwhile": WORTHWHILE,
        "tables": [
            facts_of(ServedStep.of(table)) for table in newest_of(tables).values()
        ],
    }
    return render("explore.html.j2", title="How many tokens to draft?", data=data)


def facts_of(served: ServedStep) -> dict[str, Any]:
    table, key = served.table, served.table.key
    measured = [batch for batch in table.axes.batch if len(_ratios(served, batch)) > 1]
    if not measured:
        raise ConfigError(
            f"{table.path}: covers no draft at any of its batches "
            f"{', '.join(map(str, table.axes.batch))}; sweep wider"
        )
    between = {b for b in BATCHES if measured[0] < b < measured[-1]}
    return {
        "model": key.model,
        "gpu": key.gpu,
        "engine": f"{key.engine} {key.engine_version}, {key.dtype}, tp {key.tp}, "
        f"ep {key.ep}, {key.moe_backend}",
        "flags": [] if table.is_estimated else list(_flags(table)),
        "path": shlex.quote(str(table.path)),
        "version": table.version,
        "origin": table.origin,
        "estimated": table.is_estimated,
        "finished": getattr(table.provenance, "finished", "")[:10],
        "context": min(table.axes.context),
        "drafting": served.drafting.workload,
        "caveats": table.caveats,
        "batches": [
            {"batch": batch, "ratios": _ratios(served, batch)}
            for batch in sorted({*measured, *between})
        ],
    }


def _ratios(served: ServedStep, batch: int) -> list[list[float]]:
    """(ratio, low, high) of a step over plain decoding, by K from 0."""
    context = min(served.table.axes.context)
    drafts = [k for k in range(LONGEST + 1) if served.covers(batch, k + 1, context)]
    if served.table.is_estimated:
        steps = OfEstimate(served.table, context)
        return [_ends(steps.ratio(batch, k + 1, k).value) for k in drafts]
    return [_ends(served.ratio(batch, k + 1, k, context)) for k in drafts]


def _flags(table: CostTable) -> Iterator[str]:
    system = table.key.engine.replace("_", "-")
    if system not in ENGINES:
        return
    advisor = Advisor.of(table, of_rate(1.0))
    for drafts in range(1, LONGEST + 1):
        export = ENGINES[system]((Range(1, 1, drafts),), advisor)
        file = f"\n\n# FILE:\n{yaml.safe_dump(export.fields)}"
        yield export.command + file * ("FILE" in export.command)


def _ends(ratio: Estimate) -> list[float]:
    return [_short(value) for value in (ratio.value, ratio.low, ratio.high)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
