"""A cost table in the formats that serving systems load: a function a format.

Each export notes what its format cannot hold. No serving system is imported.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from evict_profile.advice.advise import CHANGE
from evict_profile.advice.answer import Answer
from evict_profile.advice.contexts import cells
from evict_profile.errors import DataError
from evict_profile.integrations.exporters.additive import sglang_sps
from evict_profile.integrations.exporters.planners import Export, staircases_at
from evict_profile.integrations.exporters.schedules import ENGINES
from evict_profile.io import finite, write_text
from evict_profile.records import replace, to_mapping
from evict_profile.table import SERVED, CostTable, ServedStep

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
    if table.origin == SERVED:
        raise DataError(
            f"{table.path}: holds whole steps of a server, and {name} needs costs of "
            f"tokens; give --accept and --for one of {', '.join(ENGINES)}"
        )
    served = ServedStep.of(table)
    if served.assumes_drafting:
        raise DataError(
            f"{table.path}: has no time of drafting, which is in every step of {name}; "
            "measure it with 'evict-profile calibrate', or choose a draft length with "
            "'evict-profile advise --draft-level-ms'"
        )
    export = FORMATS[name](served, drafts, context, max_tokens)
    at = staircases_at(served.table, context)[0].context
    return _written(export, served, name, [at], out)


def write_advice(answers: Sequence[Answer], name: str, out: Path) -> Export:
    """Write the draft lengths of one context or of several, the smallest first."""
    advisor, plan = answers[0].advisor, answers[0].plan
    ranges = cells(answers) or plan.advised
    if not any(each.drafts for each in ranges):
        raise DataError(
            "drafting does not pay at these batches with this acceptance, and no file "
            "is written: run the engine without speculation"
        )
    export = ENGINES[name](ranges, advisor)
    acceptance = (
        *_at_contexts(answers, ranges == plan.advised),
        f"One acceptance for all requests ({advisor.lengths.source}): prompts, "
        "temperatures and lengths that accept otherwise want another draft length.",
        f"Drafting: {advisor.served.drafting.workload}.",
    )
    export = replace(export, notes=(*acceptance, *export.notes))
    contexts = [each.advisor.context for each in answers]
    return _written(export, advisor.served, name, contexts, out)


def _at_contexts(answers: Sequence[Answer], same: bool) -> Iterator[str]:
    """Whether the speed-up is settled at each context, and whether K changes."""
    for each in answers:
        at, gain = f"at context {each.advisor.context:g}", each.gain
        if each.plan.advised and not gain.worthwhile:
            yield (
                f"Not settled {at}: the 95 % interval of the speed-up is "
                f"{gain.low:.2f} to {gain.high:.2f}."
            )
    if same and len(answers) > 1:
        yield f"Draft lengths are the same {at}: no others gain {CHANGE - 1:.0%} more."


def _written(
    export: Export, served: ServedStep, name: str, contexts: Sequence[float], out: Path
) -> Export:
    """The export as written; `evict_profile` in it has notes and the table's key."""
    table = served.table
    notes = (*_lost_by_all(served, name, contexts), *export.notes)
    origin = {
        "key": to_mapping(table.key),
        "table_version": table.version,
        "samples_sha256": table.provenance.samples_sha256,
        "context": contexts[0] if len(contexts) == 1 else contexts,
        "note": notes,
    }
    write_text(_text(export, origin), out)
    command = export.command.replace("FILE", shlex.quote(str(out)))
    return replace(export, notes=notes, command=command)


def _lost_by_all(served: ServedStep, name: str, at: Sequence[float]) -> Iterator[str]:
    key, system = served.table.key, name.partition("-")[0]
    if system not in key.engine:
        engine = system if name == "sglang-sps" else name
        yield (
            f"Costs of {key.engine} {key.engine_version}, not of {engine}, whose "
            "costs differ: use this file to try the format, and measure to serve."
        )
    yield from (f"Note: {caveat}." for caveat in served.caveats)
    contexts = ", ".join(f"{context:g}" for context in at)
    yield (
        f"Costs are at context {contexts} alone; nothing checks that what serves is "
        f"{key.model} ({key.dtype}) on {key.where}, {key.engine} "
        f"{key.engine_version}, {key.moe_backend}, {key.graph_mode}."
    )


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
