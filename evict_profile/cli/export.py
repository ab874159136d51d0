from pathlib import Path
from shlex import quote

from typer import Argument, Context, Option

from evict_profile.cli import complete, options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError
from evict_profile.io import check_outputs, say

RUN_HEADER = "sweep.json"
OF_ENGINES = {"accept", "traffic", "draft_level_ms", "drafter", "outside", "captured"}
OF_PLANNERS = {"drafts"}


def export(
    ctx: Context,
    source: Path = Argument(
        exists=True,
        metavar="TABLE",
        help="Cost table, or served table (.json).",
    ),
    reader: str | None = Option(
        None,
        "--for",
        help="Engine that reads the file: vllm, sglang, trtllm, llama-cpp; or "
        "sglang-sps, for its planner.",
        autocompletion=complete.known(
            "vllm", "sglang", "trtllm", "llama-cpp", "sglang-sps"
        ),
    ),
    out: Path | None = Option(
        None, help="Output file of --for.", show_default="READER.json, or .yaml"
    ),
    accept: list[str] | None = Option(
        None, help=f"{options.ACCEPT_HELP} For a draft length."
    ),
    traffic: options.Traffic = None,
    context: options.ContextTokens = None,
    draft_level_ms: options.DraftLevelMs = None,
    drafter: options.DrafterKind = None,
    captured: options.Captured = None,
    outside: options.Outside = "refuse",
    drafts: int = Option(3, min=1, help="Levels of each step, for sglang-sps."),
) -> None:
    """Write a table for an engine."""
    if (source / RUN_HEADER).is_file():
        raise ConfigError(
            "a run's table is written by fit; type: evict-profile fit "
            f"{quote(str(source))} --tables cost_tables"
        )
    if not reader:
        raise ConfigError(
            "give --for and the engine that reads the file, as --for vllm"
        )
    from evict_profile.integrations.exporters import (
        ENGINES,
        FORMATS,
        write_advice,
        write_format,
    )
    from evict_profile.table import CostTable, files_of

    if reader not in (readers := [*ENGINES, *FORMATS]):
        raise ConfigError(f"--for {reader}: choose one of {', '.join(readers)}")
    unused = OF_PLANNERS if reader in ENGINES else OF_ENGINES
    reject_unused(ctx, unused, f"with --for {reader}")
    path = out or Path(f"{reader}.{'yaml' if reader == 'trtllm' else 'json'}")
    check_outputs([path], files_of(source))
    if reader in FORMATS:
        table = CostTable.load(source)
        written = write_format(table, reader, path, drafts, context)
    else:
        from evict_profile.advice.decide import decide
        from evict_profile.served.search import load_any

        decision = decide(
            load_any(source),
            options.one_acceptance(accept),
            traffic=traffic,
            context=context,
            draft_level_ms=draft_level_ms,
            drafter=drafter,
            captured=options.batches_of(captured or [], "--captured"),
            outside=outside,
            reader=reader,
        )
        written = write_advice(decision.answer, reader, path)
    wrote = f"{reader}: {path}" if written.fields else ""
    for line in (*written.notes, wrote, written.command):
        if line:
            say(console, line)
