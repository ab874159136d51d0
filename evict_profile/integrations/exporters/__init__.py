"""A cost table in the formats that serving systems load: a function a format.

Each export notes what its format cannot hold. No serving system is imported.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from evict_profile.advice.answer import Answer
from evict_profile.advice.steps import NOT_STATED, OfEstimate, OfServed
from evict_profile.errors import DataError
from evict_profile.integrations.exporters.additive import sglang_sps
from evict_profile.integrations.exporters.planners import Export, staircases_at
from evict_profile.integrations.exporters.schedules import ENGINES
from evict_profile.io import finite, write_text
from evict_profile.records import replace, to_mapping
from evict_profile.served.table import ServedTable
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.key import Caveats

FORMATS: Mapping[str, Callable[..., Export]] = {"sglang-sps": sglang_sps}
"""Planners for which `evict-profile export TABLE --for` writes."""


def write_format(
    table: CostTable,
    name: str,
    out: Path,
    drafts: int,
    context: int | None = None,
    max_tokens: int | None = None,
) -> Export:
    """Write the steps of a table as served in the format of a system's planner.

    Args:
        drafts: levels that each step drafts.
        context: a context of the table; None takes its smallest.
        max_tokens: that the engine verifies at once; the table must cover them.
    """
    served = ServedStep.of(table)
    if served.assumes_drafting:
        raise DataError(
            f"{table.path}: has no time of drafting, which is in every step of {name}; "
            "measure it with 'evict-profile calibrate', or choose a draft length with "
            "'evict-profile advise --draft-level-ms'"
        )
    export = FORMATS[name](served, drafts, context, max_tokens)
    at = staircases_at(served.table, context)[0].context
    return _written(export, served.table, served.caveats, name, at, out)


def write_advice(answer: Answer, name: str, out: Path) -> Export:
    """Write the advised draft lengths by batch."""
    advisor, plan = answer.advisor, answer.plan
    steps, gain, table = advisor.steps, plan.gain, advisor.steps.table
    if table is None or isinstance(steps, OfEstimate):
        raise DataError(
            f"{table and table.path}: is estimated, and says which K pays but not "
            "which is best; time your server with 'evict-profile probe', make a table "
            "with 'evict-profile import', and export that"
        )
    if not any(each.drafts for each in plan.advised):
        raise DataError(
            "drafting does not pay at these batches with this acceptance, and no file "
            "is written: run the engine without speculation"
        )
    export = ENGINES[name](plan.advised, advisor)
    settled = f"95 % interval of the speed-up is {gain.low:.2f} to {gain.high:.2f}."
    notes = (
        *[f"Not settled: the {settled}"] * (not gain.worthwhile),
        f"One acceptance for all requests ({advisor.lengths.source}): prompts, "
        "temperatures and lengths that accept otherwise want another draft length.",
        *[f"Drafting: {steps.drafting}."] * bool(steps.drafting),
    )
    export = replace(export, notes=(*notes, *export.notes))
    at = (c for b in plan.traffic for c in steps.caveats(b))
    caveats = tuple(dict.fromkeys(at))
    return _written(export, table, caveats, name, steps.context, out)


def _written(
    export: Export,
    table: CostTable | ServedTable,
    caveats: Caveats,
    name: str,
    context: float | None,
    out: Path,
) -> Export:
    """The export as written; `evict_profile` in it has notes and the table's key."""
    notes = (*_lost_by_all(table, caveats, name, context), *export.notes)
    origin = {
        "key": to_mapping(table.key),
        "table_version": table.version,
        "table_sha256": table.sha256,
        "context": context,
        "note": notes,
    }
    write_text(_text(export, origin), out)
    command = export.command.replace("FILE", shlex.quote(str(out)))
    return replace(export, notes=notes, command=command)


def _lost_by_all(
    table: CostTable | ServedTable, caveats: Caveats, name: str, at: float | None
) -> Iterator[str]:
    key, system = table.key, name.partition("-")[0]
    if key.engine != NOT_STATED and system not in key.engine:
        engine = system if name == "sglang-sps" else name
        yield (
            f"Costs of {key.engine} {key.engine_version}, not of {engine}, whose "
            "costs differ: use this file to try the format, and measure to serve."
        )
    yield from (f"Note: {caveat}." for caveat in caveats)
    if at is not None:
        yield f"Costs are at context {at:g} alone."
    title = OfServed(table).title if isinstance(table, ServedTable) else table.title
    yield f"Nothing checks that what serves is {title}."


def _text(export: Export, origin: Mapping[str, Any]) -> str:
    if export.style == "yaml":
        marks = "".join(
            f"# {line}\n" for line in json.dumps(origin, indent=1).split("\n")
        )
        return marks + yaml.safe_dump(export.fields, sort_keys=False)
    lines = [
        f'"{field}": {json.dumps(finite(value), ensure_ascii=False)}'
        for field, value in {**export.fields, "evict_profile": origin}.items()
    ]
    return "{" + ",\n ".join(lines) + "}\n"


__all__ = [
    "ENGINES",
    "FORMATS",
    "Export",
    "write_advice",
    "write_format",
]
