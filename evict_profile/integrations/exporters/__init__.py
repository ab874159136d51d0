"""A cost table in the formats that serving systems load: a function a format.

Each format holds less than the table, so each comes with a note on what it lost.
Nothing here imports a serving system: the formats are theirs, the code is not.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evict_profile.advice.acceptance import AcceptedLengths, acceptance_of
from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    staircases_at,
)
from evict_profile.integrations.exporters.llama_cpp import llama_cpp
from evict_profile.integrations.exporters.planners import (
    sglang_sps,
    sglang_sps_additive,
    vllm_curves,
)
from evict_profile.integrations.exporters.schedules import (
    sglang_adaptive,
    trtllm_schedule,
    vllm_schedule,
)
from evict_profile.io import finite, write_text
from evict_profile.records import replace, to_mapping
from evict_profile.table import CostTable

PLANNER = ("context", "draft_ms", "max_tokens")
ACCEPTANCE = tuple(signature(acceptance_of).parameters)
SCHEDULE = ("context", "draft_level_ms", "max_batch", *ACCEPTANCE)
LLAMA_CPP = ("context", "draft_level_ms", "draft_table", *ACCEPTANCE)


class Format(NamedTuple):
    """What writes a format, and the options of `export` that it reads."""

    write: Callable[[CostTable, ExportOptions], Export]
    reads: tuple[str, ...]


FORMATS: Mapping[str, Format] = {
    "sglang-sps": Format(sglang_sps, PLANNER),
    "sglang-sps-additive": Format(sglang_sps_additive, PLANNER),
    "vllm-curves": Format(vllm_curves, PLANNER),
    "vllm-schedule": Format(vllm_schedule, SCHEDULE),
    "sglang-adaptive": Format(sglang_adaptive, SCHEDULE),
    "trtllm-schedule": Format(trtllm_schedule, SCHEDULE),
    "llama-cpp": Format(llama_cpp, LLAMA_CPP),
}
"""What `evict-profile export TABLE --format` calls."""


def format_of(name: str) -> Format:
    """A format by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in FORMATS:
        raise ConfigError(f"no format '{name}'; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def write_format(
    table: CostTable, name: str, out: Path, options: ExportOptions
) -> Export:
    """Write a table in a system's format; what was lost also stands in the file, under
    `evict_profile`, beside the table's key.

    Raises:
        ConfigError: no such format, or an option that it needs is missing.
        TableError: the table does not hold what the format needs.
        StoreError: the file cannot be written.
    """
    export = format_of(name).write(table, options)
    context = staircases_at(table, options.context)[0].context
    notes = (*_lost_by_all(table, name, context), *export.notes)
    origin = {
        "key": to_mapping(table.key),
        "table_version": table.version,
        "samples_sha256": table.provenance.samples_sha256,
        "context": context,
        "note": notes,
    }
    write_text(_text(export, origin), out)
    command = export.command.replace("FILE", str(out))
    return replace(export, notes=notes, command=command)


def _lost_by_all(table: CostTable, name: str, context: int) -> Iterator[str]:
    """What holds of a table in any format, whoever reads it."""
    key, system = table.key, name.partition("-")[0]
    if system not in key.engine:
        yield (
            f"Prices of {key.engine} {key.engine_version}, not of {system}, whose "
            "prices differ: use this file to try the format, and measure to serve."
        )
    yield from (f"Note: {caveat}." for caveat in table.caveats)
    yield (
        f"Priced at context {context} alone, and nothing checks that what serves is "
        f"{key.model} ({key.dtype}) on {key.where}, {key.engine} "
        f"{key.engine_version}, {key.moe_backend}, {key.graph_mode}."
    )


def file_name(name: str) -> str:
    """What a format's file is called unless it is named."""
    return f"{name}.{'yaml' if name.startswith('trtllm') else 'json'}"


SCHEDULES = {
    "vllm": "vllm-schedule",
    "sglang": "sglang-adaptive",
    "trtllm": "trtllm-schedule",
}
"""The schedule of each engine that reads one, by what tables call the engine."""


def schedule_command(
    table: CostTable,
    lengths: AcceptedLengths,
    context: int | None = None,
    level_ms: float | None = None,
) -> str:
    """How to run the table's engine as advised; SGLang where it reads no schedule."""
    name = SCHEDULES.get(table.key.engine, "sglang-adaptive")
    try:
        options = ExportOptions(context, lengths=lengths, level_ms=level_ms)
        export = FORMATS[name].write(table, options)
    except TableError as error:
        return f"no schedule: {error}"
    given = {"--context": context, "--draft-level-ms": level_ms}
    options_given = "".join(f" {k} {v}" for k, v in given.items() if v is not None)
    return (
        f"write: evict-profile export {shlex.quote(str(table.path))} --format {name} "
        f"{lengths.option}{options_given} --out FILE\nthen: {export.command}"
    )


def _text(export: Export, origin: Mapping[str, Any]) -> str:
    """The file: a line a field, and where it came from."""
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
    "FORMATS",
    "Export",
    "ExportOptions",
    "file_name",
    "format_of",
    "schedule_command",
    "write_format",
]
