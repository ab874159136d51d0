"""The command that recommends how much to draft."""

import re
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from typer import Argument, Context, Exit, Option

from evict_profile.cli import options
from evict_profile.cli.calibrate import judge_runs
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import say
from evict_profile.records import replace

if TYPE_CHECKING:
    from evict_profile.table import CostTable

QUANTISED = re.compile(r"(?i)(?<![a-z])(mx|nv)?fp[48]|int[48]|awq|gptq")
"""Formats of weights in the names of checkpoints."""
BY_NAME = {"model", "gpu", "engine", "tp", "dtype", "like", "source"}
"""Options that name a table."""


def advise(
    ctx: Context,
    table: Path | None = Argument(
        None,
        callback=options.valid_table,
        help="Cost table (.json). Without it, --model, --gpu and --engine select one.",
    ),
    model: options.ModelName = None,
    gpu: options.GpuName = None,
    engine: options.EngineName = None,
    tp: int | None = Option(None, min=1, help="Tensor-parallel size."),
    dtype: str | None = Option(
        None, help="Type of the expert weights: bf16, fp8, fp8_block ..."
    ),
    like: options.Like = None,
    source: options.Source = None,
    accept: str | None = Option(None, help=options.ACCEPT_HELP),
    batch: list[int] | None = Option(
        None,
        min=1,
        help="Batch size of which to show every draft length; repeatable.",
        show_default="the best of each of the table's",
    ),
    traffic: options.Traffic = None,
    context: options.ContextTokens = None,
    draft_level_ms: options.DraftLevelMs = None,
    drafter: options.DrafterKind = None,
    outside: options.Outside = "refuse",
    check: list[str] | None = Option(
        None,
        help="Judge runs of a server instead: files as of calibrate --served, and logs "
        "of SGLang or vLLM; repeatable. The exit code is 1 if something is found.",
    ),
    explain: bool = Option(False, help="Print also what the advice is computed from."),
    as_json: options.AsJson = False,
    markdown: bool = Option(False, "--md", help="Print one Markdown table alone."),
) -> None:
    """Recommend how many tokens to draft, from acceptance."""
    if as_json + markdown + explain > 1:
        raise ConfigError(
            "--json, --md and --explain are three answers; give one of them"
        )
    if check:
        reject_unused(ctx, {*ctx.params} - {"check"}, "with --check")
        raise Exit(int(judge_runs(check)))
    if not accept:
        raise ConfigError("give --accept, or --check with runs that are to be judged")
    if table:
        reject_unused(ctx, BY_NAME, "with a table's file")
    from evict_profile.advice.acceptance import acceptance_of
    from evict_profile.advice.advise import traffic_of
    from evict_profile.report.advice import advise as advise_on
    from evict_profile.table import CostTable

    if table:
        covered = CostTable.load(table)
    else:
        # Mistakes are found before a table is estimated.
        acceptance_of(accept)
        traffic_of(traffic or "1:1")
        covered = _named_table(model, gpu, engine, tp, dtype, like, source, accept)
    advice = advise_on(
        covered,
        accept,
        batch=batch or (),
        traffic=traffic,
        context=context,
        draft_level_ms=draft_level_ms,
        drafter=drafter,
        outside=outside,
    )
    if as_json:
        say(console, advice.json())
    else:
        say(console, advice.markdown() if markdown else advice.text(explain))


def _named_table(
    model: str | None,
    gpu: str | None,
    engine: str | None,
    tp: int | None,
    dtype: str | None,
    like: str | None,
    source: Path | None,
    accept: str,
) -> "CostTable":
    """Find the table of these names, or estimate one."""
    from evict_profile.table import COMPOSED, by_name, search_path, tables_in
    from evict_profile.table.search import nearest_named

    folders = [tables_in([folder]) for folder in search_path()]
    found = [each for tables in folders for each in tables]
    near = nearest_named(found, model, gpu, engine)
    command = f"evict-profile advise --accept {quote(accept)} "
    others = f"; there is a table: {command}{' | '.join(near)}" if near else ""
    names = {"--model": model, "--gpu": gpu, "--engine": engine}
    if missing := [option for option, name in names.items() if not name]:
        more = others or "; see what is there with: evict-profile show"
        raise ConfigError(
            f"give a cost table's file, or --model, --gpu and --engine; missing: "
            f"{', '.join(missing)}{more}"
        )
    assert model and gpu and engine
    quantised = None if dtype else QUANTISED.search(model)
    if not (quantised or like):
        own = (by_name(each, model, gpu, engine, tp, dtype) for each in folders)
        table = next(filter(None, own), None)
        # Rows that are named are estimated from: shipped estimates cover less.
        if table and not (source and table.origin == COMPOSED):
            return table
    try:
        if quantised:
            _reject_format(model, quantised[0])
        return _estimated(model, gpu, engine.lower(), tp, dtype, like, source, command)
    except ConfigError as error:
        raise ConfigError(f"{error}{others}") from error


def _reject_format(model: str, named: str) -> None:
    from evict_profile.config import load_model
    from evict_profile.sources.asked import deployments_of

    known = sorted({each.dtype for each in deployments_of(load_model(model).name)})
    formats = f", one of {', '.join(known)}" if known else ""
    raise ConfigError(
        f"--model {model}: its name says {named}; say the weights' format with "
        f"--dtype{formats}"
    )


def _estimated(
    model: str,
    gpu: str,
    engine: str,
    tp: int | None,
    dtype: str | None,
    like: str | None,
    source: Path | None,
    command: str,
) -> "CostTable":
    from evict_profile.config import load_model

    shape = load_model(model)  # what is mistyped, before the other libraries load
    from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, MissingSource
    from evict_profile.sources.asked import assumption, deployment_of
    from evict_profile.sources.estimate import estimated_table

    asked = deployment_of(shape, gpu, engine, dtype, tp)
    try:
        other = load_model(like) if like else None
        table = estimated_table(shape, asked, source, partial(say, stderr), other)
    except MissingSource as error:
        wheel = f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
        raise ConfigError(
            f"no table is of {model} on {gpu} under {engine}; estimate one with: pip "
            f"download --no-deps {PACKAGE}=={VERSION} && {command}--model "
            f"{quote(model)} {asked.options} --from {wheel}"
        ) from error
    known = () if dtype else (assumption(shape, asked),)
    return replace(table, caveats=table.caveats + known)
