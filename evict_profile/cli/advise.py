"""The command that recommends how much to draft."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import say

if TYPE_CHECKING:
    from evict_profile.table import CostTable

QUANTISED = re.compile(r"(?i)(?<![a-z])(mx|nv)?fp[48]|int[48]|awq|gptq")
"""Formats of weights in the names of checkpoints."""
BY_NAME = {"model", "gpu", "engine", "tp", "dtype", "source"}
"""Options that name a table."""


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
    accept: str = Option(help=options.ACCEPT_HELP),
    batch: list[int] | None = Option(
        None,
        min=1,
        help="Batch size of which to show every draft length; repeatable.",
        show_default="the best of each of the table's",
    ),
    traffic: options.Traffic = None,
    context: options.ContextTokens = None,
    draft_level_ms: options.DraftLevelMs = None,
    as_json: bool = Option(False, "--json", help="Print one JSON document alone."),
    markdown: bool = Option(False, "--md", help="Print one Markdown table alone."),
) -> None:
    """Recommend how many tokens to draft, from acceptance."""
    if as_json and markdown:
        raise ConfigError("--json and --md are two answers; give one of them")
    if table:
        reject_unused(ctx, BY_NAME, "with a table's file")
    from evict_profile.advice.acceptance import acceptance_of
    from evict_profile.advice.advise import traffic_of
    from evict_profile.report.advice import advise as advise_on
    from evict_profile.table import CostTable

    # Mistakes are found before a table is composed.
    acceptance_of(accept)
    traffic_of(traffic or "1:1")
    covered = (
        CostTable.load(table)
        if table
        else _named_table(model, gpu, engine, tp, dtype, source)
    )
    advice = advise_on(
        covered,
        accept,
        batch=batch or (),
        traffic=traffic,
        context=context,
        draft_level_ms=draft_level_ms,
    )
    if as_json:
        say(console, advice.json())
    else:
        say(console, advice.markdown() if markdown else str(advice))


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
