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
from evict_profile.advice.capture import FLAGS, to_capture
from evict_profile.advice.steps import Table
from evict_profile.errors import DataError
from evict_profile.integrations.exporters.additive import sglang_sps
from evict_profile.integrations.exporters.planners import Export, staircases_at
from evict_profile.integrations.exporters.schedules import ENGINES
from evict_profile.io import finite, write_text
from evict_profile.records import replace, to_mapping
from evict_profile.served.step import ServedStep
from evict_profile.served.table import NOT_STATED
from evict_profile.table import CostTable
from evict_profile.table.key import Caveats

FORMATS: Mapping[str, Callable[..., Export]] = {"sglang-sps": sglang_sps}
"""Planners for which `evict-profile export TABLE --for` writes."""


def write_format(
    table: CostTable,
    name: str,
    out: Path,
    drafts: int,
    context: int | None = None,
) -> Export:
    """Write the steps of a table as served in the format of a system's planner.

    Args:
        drafts: levels that each step drafts.
        context: a context of the table; None takes its smallest.
    """
    served = ServedStep.of(table)
    if served.assumes_drafting:
        raise DataError(
            f"{table.path}: has no time of drafting, which is in every step of {name}; "
            "measure it with 'evict-profile calibrate', or choose a draft length with "
            "'evict-profile advise --draft-level-ms'"
        )
    export = FORMATS[name](served, drafts, context)
    at = staircases_at(served.table, context)[0].context
    return _written(export, table, at, table.caveats, name, out)


def write_advice(answer: Answer, name: str, out: Path) -> Export:
    """Write the advised draft lengths by batch, where the engine reads a file."""
    advisor, plan = answer.advisor, answer.plan
    steps, gain = advisor.steps, plan.gain
    if steps.table is None or steps.estimated:
        raise DataError(
            f"{steps.table and steps.table.path}: is estimated, and says which K pays "
            "but not which is best; time your server with 'evict-profile probe', make "
            "a table with 'evict-profile import', and export that"
        )
    if not any(each.drafts for each in plan.advised):
        found = (
            "it is not settled whether drafting pays"
            if plan.verdict == "not settled"
            else "drafting does not pay"
        )
        raise DataError(
            f"{found} at these batches with this acceptance, and plain decoding needs "
            f"no file: start {name} without its options for speculation"
        )
    export = ENGINES[name](plan.advised, advisor)
    unsure = (
        f"Not settled: the 95 % interval of the speed-up is {gain.low:.2f} to "
        f"{gain.high:.2f}."
    )
    notes = (
        *[unsure] * (gain.verdict == "not settled"),
        *(answer.slower if len(plan.advised) == 1 else ()),
        f"One acceptance for all requests ({advisor.lengths.source}): prompts, "
        "temperatures and lengths that accept otherwise want another draft length.",
        *[f"Drafting: {steps.drafting}."] * bool(steps.drafting),
        *(to_capture(plan.advised, steps, name) if name in FLAGS else ()),
    )
    export = replace(export, notes=(*notes, *export.notes))
    caveats = tuple(dict.fromkeys(c for b in plan.traffic for c in steps.caveats(b)))
    return _written(export, steps.table, steps.context, caveats, name, out)


def _written(
    export: Export,
    table: Table,
    context: float | None,
    caveats: Caveats,
    name: str,
    out: Path,
) -> Export:
    """The export as written; `evict_profile` in it has notes and the table's key."""
    notes = (*_general_notes(table, context, caveats, name), *export.notes)
    origin = {
        "key": to_mapping(table.key),
        "table_version": table.version,
        "table_sha256": table.sha256,
        "context": context,
        "note": notes,
    }
    if export.fields:
        write_text(_text(export, origin), out)
    command = export.command.replace("FILE", shlex.quote(str(out)))
    return replace(export, notes=notes, command=command)


def _general_notes(
    table: Table, context: float | None, caveats: Caveats, name: str
) -> Iterator[str]:
    key, system = table.key, name.partition("-")[0]
    if key.engine != NOT_STATED and system not in key.engine:
        engine = system if name == "sglang-sps" else name
        yield (
            f"Costs of {key.engine} {key.engine_version}, not of {engine}, whose "
            "costs differ: use this file to try the format, and measure to serve."
        )
    yield from (f"Note: {caveat}." for caveat in caveats)
    if context is not None:
        yield f"Costs are at context {context:.0f} alone."
    yield f"Nothing checks that what serves is {table.title}."


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
