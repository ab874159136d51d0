"""Commands that decide how much to draft: advise and export."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, say

if TYPE_CHECKING:
    from evict_profile.table import CostTable

QUANTISED = re.compile(r"(?i)(?<![a-z])(mx|nv)?fp[48]|int[48]|awq|gptq")
"""Formats of weights in the names of checkpoints."""
PLANNERS = {"out", "context", "drafts", "max_tokens"}
"""Options of `export` that need --format."""


def export(
    ctx: Context,
    source: Path = Argument(
        exists=True, help="Run folder; with --format, a cost table (.json)."
    ),
    tables: options.Tables = Path("cost_tables"),
    format_name: str | None = Option(
        None, "--format", help="Format of a planner: sglang-sps."
    ),
    out: Path | None = Option(
        None, help="Output file of --format.", show_default="FORMAT.json"
    ),
    context: int | None = Option(
        None, help="Context length in tokens.", show_default="the table's smallest"
    ),
    drafts: int = Option(3, min=1, help="Levels that each step drafts."),
    max_tokens: int | None = Option(
        None,
        min=1,
        help="Tokens that the engine verifies at once; the table must cover them.",
    ),
) -> None:
    """Write a run's cost table if it passes every gate, or a table for a planner."""
    if not format_name:
        reject_unused(ctx, PLANNERS, "without --format")
        check_folder(tables)
        from evict_profile.fit.export import export_run, outcome

        say(console, outcome(*export_run(source, tables)))
        return
    reject_unused(ctx, {"tables"}, "with --format")
    from evict_profile.integrations.exporters import write_format
    from evict_profile.table import CostTable, files_of

    path = out or Path(f"{format_name}.json")
    check_outputs([path], files_of(source))
    table = CostTable.load(source)
    made = write_format(table, format_name, path, drafts, context, max_tokens)
    for line in (*made.notes, f"{format_name}: {path}"):
        say(console, line)


def advise(
    ctx: Context,
    table: Path | None = Argument(
        None,
        callback=options.valid_table,
        help="Cost table (.json). Without it, --model, --gpu and --engine select one.",
    ),
    model: str | None = Option(None, help="Model name, also as on Hugging Face."),
    gpu: str | None = Option(None, help="GPU name, such as h200."),
    engine: str | None = Option(None, help="Engine: sglang, vllm or trtllm."),
    tp: int | None = Option(None, min=1, help="Tensor-parallel size."),
    dtype: str | None = Option(
        None, help="Type of the expert weights: bf16, fp8, fp8_block ..."
    ),
    source: options.Source = None,
    accept: str = Option(
        help="Acceptance: a rate 0.75, lengths 1.84,2.51,3.01, shares 0.8,0.65, "
        "FILE.yaml[:curve], FILE.json of vLLM's metrics, or TRACE.parquet."
    ),
    batch: list[int] | None = Option(
        None,
        min=1,
        help="Batch size of which to show every draft length; repeatable.",
        show_default="the best of each of the table's",
    ),
    traffic: str | None = Option(
        None,
        help="Share of plain decoding's time by batch size, as 1:.5,8:.3,64:.2.",
        show_default="equal",
    ),
    context: int | None = Option(
        None, help="Context length in tokens.", show_default="the table's smallest"
    ),
    draft_level_ms: float | None = Option(
        None,
        help="Milliseconds to draft one more token.",
        show_default="the table's, else assumed",
    ),
    draft_table: Path | None = Option(
        None,
        callback=options.valid_table,
        help="Cost table of the draft model's GGUF, for llama.cpp.",
    ),
    reader: Literal["vllm", "sglang", "trtllm", "llama-cpp"] | None = Option(
        None, "--for", help="Engine for which to write a configuration file."
    ),
    out: Path | None = Option(
        None,
        help="Output file of --for.",
        show_default="advice-ENGINE.json, or .yaml",
    ),
    as_json: bool = Option(False, "--json", help="Print one JSON document alone."),
    markdown: bool = Option(False, "--md", help="Print one Markdown table alone."),
) -> None:
    """Recommend how much to draft at each batch size, from acceptance alone."""
    if as_json and markdown:
        raise ConfigError("--json and --md are two answers; give one of them")
    _reject_unused_by_advise(ctx, table, reader)
    from evict_profile.advice.acceptance import acceptance_of, file_of
    from evict_profile.advice.advise import Advisor, plan, traffic_of
    from evict_profile.report.advice import Advice
    from evict_profile.table import CostTable, files_of

    suffix = "yaml" if reader == "trtllm" else "json"
    file = (out or Path(f"advice-{reader}.{suffix}")) if reader else None
    read = [*files_of(table or Path()), *files_of(draft_table or Path())]
    check_outputs([file], [*read, file_of(accept)[0]])
    # Mistakes are found before a table is composed.
    lengths = acceptance_of(accept)
    shares = traffic_of(traffic) if traffic else {}
    draft = CostTable.load(draft_table) if draft_table else None
    covered = (
        CostTable.load(table)
        if table
        else _named_table(model, gpu, engine, tp, dtype, source)
    )
    drafting = (context, draft_level_ms, draft)
    advisors = [Advisor.of(covered, each, *drafting) for each in lengths]
    shown = [1] if reader == "llama-cpp" else batch or shares or advisors[0].batches
    batches = tuple(dict.fromkeys(shown))
    shares = shares or dict.fromkeys(batches, 1.0 / len(batches))
    # TensorRT-LLM refuses a longer draft than the smallest batch has.
    planned = plan(advisors[0], shares, falling=reader == "trtllm")
    advice, written = Advice(advisors, batches, planned, bool(batch)), None
    if file and reader:
        from evict_profile.integrations.exporters import write_advice

        written = write_advice(advisors[0], planned, reader, file)
    if as_json:
        from evict_profile.records import to_mapping

        made = written and {"path": str(file), **to_mapping(written)}
        say(console, advice.json(file=made))
        return
    say(console, advice.markdown() if markdown else advice.text())
    if written:
        for line in (*written.notes, f"{reader}: {file}", written.command):
            say(stderr if markdown else console, line)


def _reject_unused_by_advise(
    ctx: Context, table: Path | None, reader: str | None
) -> None:
    if table:
        by_name = {"model", "gpu", "engine", "tp", "dtype", "source"}
        reject_unused(ctx, by_name, "with a table's file")
    if not reader:
        reject_unused(ctx, {"out"}, "without --for")
    if reader == "llama-cpp":
        where = "with llama.cpp, which runs one request"
        reject_unused(ctx, {"batch", "traffic"}, where)


def _named_table(
    model: str | None,
    gpu: str | None,
    engine: str | None,
    tp: int | None,
    dtype: str | None,
    source: Path | None,
) -> "CostTable":
    """Find the table of these names, or compose one that is not kept."""
    from evict_profile.table import by_name, search_path, tables_in

    if not (model and gpu and engine):
        raise ConfigError(
            "give a cost table's file, or --model, --gpu and --engine; see what is "
            "there with: evict-profile show"
        )
    if not dtype and (format_name := QUANTISED.search(model)):
        raise ConfigError(
            f"--model {model}: its name says {format_name[0]}; say the weights' format "
            "with --dtype, such as fp8_block, fp8, nvfp4, int4 or bf16"
        )
    found, engine = tables_in(search_path()), engine.lower()
    if table := by_name(found, model, gpu, engine, tp, dtype):
        return table
    return _composed_table(model, gpu, engine, tp or 1, dtype or "bf16", source)


def _composed_table(
    model: str, gpu: str, engine: str, tp: int, dtype: str, source: Path | None
) -> "CostTable":
    from evict_profile.config import load_model
    from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, open_source
    from evict_profile.sources.compose import compose
    from evict_profile.sources.composer import Composer, sweep_of
    from evict_profile.sources.pairs import check_asked, the_pair

    shape = load_model(model)
    check_asked(shape, gpu, engine, dtype, tp)
    try:
        rows = open_source(source)
    except ConfigError as error:
        if source:
            raise
        raise ConfigError(
            f"no table is of {model} on {gpu} under {engine}; compose one with: pip "
            f"download --no-deps {PACKAGE}=={VERSION}, and this command again with "
            f"--from {PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
        ) from error
    say(stderr, "composing a table, which is not kept: some seconds")
    pair = the_pair(rows, shape, gpu, engine, dtype, tp=tp)
    return compose(Composer.of(rows, pair, shape), sweep_of())[0]
