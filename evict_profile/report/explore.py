"""The page on which a reader chooses a table and finds the fastest draft length.

Its script computes as `ServedStep.ratio` and `Advisor` do, from the parts of each step.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from evict_profile.advice.acceptance import LONGEST, REJECTION_GROWTH, of_rate
from evict_profile.advice.advise import Advisor, Range
from evict_profile.advice.drafting import drafting_of_level
from evict_profile.errors import ConfigError
from evict_profile.integrations.exporters import ENGINES
from evict_profile.io import say, write_text
from evict_profile.report.render import render
from evict_profile.stats import WORTHWHILE
from evict_profile.table import COMPOSED, CostTable, Found, version_of
from evict_profile.table.overheads import TWO_SIDED

BATCHES = tuple(2**i for i in range(10))


def write_explore(console: Console, found: Sequence[Found], out: Path) -> None:
    """Write the page of the tables among these files; name the others."""
    for refused in filter(None, (each.refused for each in found)):
        say(console, f"not a table: {refused}")
    tables = [each.table for each in found if each.table]
    if not tables:
        raise ConfigError(f"{out}: not written, since no table was found; name others")
    write_text(explore_page(tables), out)
    say(console, f"page: {out}")


def explore_page(tables: Iterable[CostTable]) -> str:
    """One HTML file with a script, of the newest table of each key.

    Raises:
        ConfigError: a table covers no draft at any batch.
    """
    newest = {t.key: t for t in sorted(tables, key=lambda t: version_of(t.version))}
    advisors = [Advisor.of(table, of_rate(1.0)) for table in newest.values()]
    data = {
        "growth": REJECTION_GROWTH,
        "worthwhile": WORTHWHILE,
        "tables": [facts_of(advisor) for advisor in advisors],
    }
    return render("explore.html.j2", title="How many tokens to draft?", data=data)


def _flags(system: str, advisor: Advisor) -> list[str]:
    """How the table's engine is started, by draft length from 1; none if unknown."""
    if system not in ENGINES:
        return []
    ranges = (Range(1, 1, drafts) for drafts in range(1, LONGEST + 1))
    exports = [ENGINES[system]((each,), advisor) for each in ranges]
    file = "\n\n# FILE:\n"
    return [
        e.command + f"{file}{yaml.safe_dump(e.fields)}" * ("FILE" in e.command)
        for e in exports
    ]


def facts_of(advisor: Advisor) -> dict[str, Any]:
    """A table as the page's script reads it."""
    table, key = advisor.served.table, advisor.served.table.key
    first, *_, last = *advisor.batches, advisor.batches[-1]
    batches = {b for b in BATCHES if first < b < last} | {*advisor.batches}
    system = key.engine.replace("_", "-")
    return {
        "model": key.model,
        "gpu": key.gpu,
        "engine": f"{key.engine} {key.engine_version}, {key.dtype}, tp {key.tp}, "
        f"ep {key.ep}, {key.moe_backend}",
        "system": system,
        "flags": _flags(system, advisor),
        "path": shlex.quote(str(table.path)),
        "version": table.version,
        "origin": "estimated" if table.origin == COMPOSED else table.origin,
        "finished": getattr(table.provenance, "finished", "")[:10],
        "context": advisor.context,
        "drafting": advisor.served.drafting.workload,
        "caveats": advisor.served.caveats,
        "batches": [_step(advisor, b) for b in sorted(batches)],
    }


def _step(advisor: Advisor, batch: int) -> dict[str, Any]:
    """A step at a batch by draft length, in microseconds, and the error of its ratio.

    With a server's overheads the error is `times` of the growth, and `apart` besides;
    else `half` of each ratio, and the whole of drafting if it is `assumed`.
    """
    served, at = advisor.served, advisor.context
    drafts = [way.levels for way in advisor.at(batch).ways]
    us, clock = served.table.step_cost_us(batch, at), served.drafting.at(batch)
    step: dict[str, Any] = {
        "batch": batch,
        "verify_us": [_short(us[batch * (k + 1)]) for k in drafts],
        "beside_us": [_short(clock.overhead_us(k)) for k in drafts],
        "fixed_us": _short(clock.fixed_us),
    }
    if known := served.overheads:
        ends = (known.ratio_interval(1.0, batch, k + 1, k, us[batch]) for k in drafts)
        times = math.exp(TWO_SIDED * known.growth_at(batch))
        apart = [_short(high - 1.0) for _, high in ends]
        return step | {"times": _short(times), "apart": apart}
    undrafted = drafting_of_level(served.table, 0.0, served.drafter)
    forwards = served.with_drafting(undrafted)
    ratios = (forwards.ratio(batch, k + 1, k, at) for k in drafts)
    half = [_short(math.log(r.high / r.value)) for r in ratios]
    return step | {"half": half, "assumed": served.assumes_drafting}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
