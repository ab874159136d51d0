"""Commands that compose tables of GPUs from public measurements: one, or all."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, say, write_text

if TYPE_CHECKING:
    from evict_profile.table import CostTable


@dataclass(frozen=True)
class PairOptions:
    """A model under an engine on a GPU, and which of its kernels."""

    model: str | None = Option(None, help="Name, YAML, or a HF config.json.")
    gpu: str | None = Option(None, help="Such as h200; see --list.")
    engine: str | None = Option(None, help="sglang, vllm or trtllm.")
    engine_version: str | None = Option(None, help="Else the newest with such rows.")
    dtype: str = Option("bf16", help="Of the experts: bf16, fp8, fp8_block, nvfp4 ...")
    tp: int = Option(1, min=1, help="GPUs, over all of which attention is cut.")
    ep: int = Option(1, min=1, help="Groups of them that share out the experts.")
    kernel: str | None = Option(None, help="Of the experts, where there are several.")


LISTED = {"list_them", "source", "model", "gpu", "engine"}
COMPOSED_BY_ALL = {"all_pairs", "source", "tables"}
"""Options of `compose` that --list and --all read."""


def compose(
    ctx: Context,
    asked: PairOptions,
    list_them: bool = Option(False, "--list", help="Say what can be composed."),
    all_pairs: bool = Option(False, "--all", help="All that can, and a page of them."),
    source: options.Source = None,
    decode_us: str | None = Option(
        None, help="US@BATCH,CONTEXT of a served step of plain decoding."
    ),
    tables: options.Tables = Path("composed"),
) -> None:
    """Compose a cost table of a real GPU from public measurements of its parts."""
    if list_them:
        unread = {each.name or "" for each in ctx.command.params} - LISTED
        check_read(ctx, unread, "with --list")
    if all_pairs:
        unread = {each.name or "" for each in ctx.command.params} - COMPOSED_BY_ALL
        check_read(ctx, unread, "with --all")
        _compose_all(source, tables)
        return
    from evict_profile.config import load_model
    from evict_profile.report import public as report
    from evict_profile.sources.aiconfigurator import open_source
    from evict_profile.sources.compose import compose as composed
    from evict_profile.sources.compose import export_composed
    from evict_profile.sources.composer import Composer, DecodeTime, sweep_of
    from evict_profile.sources.pairs import pairs, the_pair

    model = load_model(asked.model) if asked.model else None
    sweep = sweep_of()
    time = DecodeTime.of(decode_us) if decode_us else None
    rows = open_source(source)
    if list_them:
        show = report.show_pairs if model else report.show_offers
        show(console, pairs(rows, asked.gpu, asked.engine, model))
        return
    if not (model and asked.gpu and asked.engine):
        raise ConfigError(
            "--model, --gpu and --engine say what to compose; see what there is with: "
            "evict-profile compose --list"
        )
    check_folder(tables)
    pair = the_pair(
        rows,
        model,
        asked.gpu,
        asked.engine,
        asked.dtype,
        version=asked.engine_version,
        tp=asked.tp,
        ep=asked.ep,
        kernel=asked.kernel,
    )
    composer = Composer.of(rows, pair, model)
    say(stderr, "composing cells and fitting them: up to a minute")
    table, cells = composed(composer, sweep, time)
    report.show_composed(console, table)
    path = export_composed(table, cells, tables)
    say(console, f"table: {path}")
    page = path.with_suffix(".html")
    write_text(report.composed_page(table, cells), page)
    say(console, f"report: {page}")


QUANTISED = re.compile(r"(?i)(?<![a-z])(mx|nv)?fp[48]|int[48]|awq|gptq")
"""Formats of weights in the names of checkpoints."""


def table_of(named: options.NamedTable) -> "CostTable":
    """The table that is named: its file, one that is there, or one composed for it."""
    from evict_profile.table import CostTable, by_name, search_path, tables_in

    if named.table:
        return CostTable.load(named.table)
    if not (named.model and named.gpu and named.engine):
        raise ConfigError(
            "give a cost table's file, or --model, --gpu and --engine; see what is "
            "there with: evict-profile show"
        )
    if not named.dtype and (own := QUANTISED.search(named.model)):
        raise ConfigError(
            f"--model {named.model}: its name says {own[0]}; say the weights' format "
            "with --dtype, such as fp8_block, fp8, nvfp4, int4 or bf16"
        )
    asked = (named.model, named.gpu, named.engine.lower(), named.tp, named.dtype)
    return by_name(tables_in(search_path()), *asked) or _composed(named)


def _composed(named: options.NamedTable) -> "CostTable":
    """A table composed on the spot; it is written nowhere."""
    from evict_profile.config import load_model
    from evict_profile.config.model import known_models
    from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, open_source
    from evict_profile.sources.compose import compose as composed
    from evict_profile.sources.composer import Composer, sweep_of
    from evict_profile.sources.pairs import the_pair
    from evict_profile.table import model_named

    name, gpu, engine = (str(n) for n in (named.model, named.gpu, named.engine))
    try:
        rows = open_source(named.source)
    except ConfigError as error:
        if named.source:
            raise
        raise ConfigError(
            f"no table is of {name} on {gpu} under {engine}; compose one with: pip "
            f"download --no-deps {PACKAGE}=={VERSION}, and this command again with "
            f"--from {PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
        ) from error
    known = model_named(name, [path.stem for path in known_models()])
    model = load_model(known or name)
    dtype, tp = named.dtype or "bf16", named.tp or 1
    say(stderr, "composing a table, which is not kept: some seconds")
    pair = the_pair(rows, model, gpu, engine, dtype, tp=tp)
    composer = Composer.of(rows, pair, model)
    return composed(composer, sweep_of())[0]


def _compose_all(source: Path | None, tree: Path) -> None:
    from rich.progress import track

    from evict_profile.report.many import counts, many_tables_page
    from evict_profile.report.public import show_refused
    from evict_profile.sources.aiconfigurator import open_source
    from evict_profile.sources.every import compose_all, newest_pairs

    rows = open_source(source)
    check_folder(tree)
    chosen = track(list(newest_pairs(rows)), "composing", console=stderr)
    outcomes = compose_all(rows, chosen, tree)
    page = tree / "tables.html"
    title = "What verification costs on GPUs that others measured"
    write_text(many_tables_page(title, outcomes, tree), page)
    show_refused(console, outcomes)
    say(console, counts(outcomes))
    say(console, f"page: {page}")
