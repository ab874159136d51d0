"""The command that composes cost tables of GPUs from public measurements."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, say, write_text

if TYPE_CHECKING:
    from evict_profile.sources.aiconfigurator import Source

USED_BY_LIST = {"list_them", "model_name", "gpu", "engine", "as_json"}
USED_BY_ALL = {"all_pairs", "source", "tables"}


def compose(
    ctx: Context,
    model_name: str | None = Option(
        None, "--model", help="Model: a shipped name, a YAML or a HF config.json."
    ),
    gpu: str | None = Option(None, help="GPU name, such as h200; see --list."),
    engine: str | None = Option(None, help="Engine: sglang, vllm or trtllm."),
    engine_version: str | None = Option(
        None, help="Engine version.", show_default="newest"
    ),
    dtype: str | None = Option(
        None,
        help="Type of the expert weights: bf16, fp8, fp8_block, nvfp4 ...",
        show_default="as published",
    ),
    tp: int = Option(1, min=1, help="Tensor-parallel size."),
    list_them: bool = Option(False, "--list", help="List what can be composed."),
    all_pairs: bool = Option(
        False, "--all", help="Compose every available table and write a summary page."
    ),
    source: options.Source = None,
    tables: options.Tables = Path("composed"),
    as_json: options.AsJson = False,
) -> None:
    """Estimate a GPU's table from public kernel timings."""
    if list_them or all_pairs:
        used = USED_BY_LIST if list_them else USED_BY_ALL
        unused = {each.name or "" for each in ctx.command.params} - used
        reject_unused(ctx, unused, "with --list" if list_them else "with --all")
    else:
        reject_unused(ctx, {"as_json"}, "without --list")
        _check_named(model_name, gpu, engine)
    from evict_profile.config import load_model

    model = load_model(model_name) if model_name else None
    if list_them:
        from evict_profile.report.offers import show_offers
        from evict_profile.sources.asked import offered

        show_offers(console, offered(model, gpu, engine), bool(model), as_json)
        return
    from evict_profile.sources.aiconfigurator import open_source
    from evict_profile.sources.asked import Deployment, check_fit, check_names
    from evict_profile.sources.pairs import kernels_of

    if model and gpu and engine:
        dtype = dtype or model.checkpoint_dtype
        check_fit(model, Deployment(check_names(gpu, engine, dtype), engine, dtype, tp))
    rows = open_source(source)
    check_folder(tables)
    if not (model and gpu and engine):
        _compose_all(rows, tables)
        return
    assert dtype
    kernels = kernels_of(rows, model, gpu, engine, dtype, tp, engine_version)

    from evict_profile.report.public import composed_page, show_composed
    from evict_profile.sources.compose import compose, composer_of, export_composed
    from evict_profile.sources.composer import sweep_of

    say(stderr, "composing cells and fitting them: up to a minute")
    table, cells = compose(composer_of(rows, kernels, model), sweep_of())
    show_composed(console, table)
    path = export_composed(table, cells, tables)
    say(console, f"table: {path}")
    page = path.with_suffix(".html")
    write_text(composed_page(table, cells), page)
    say(console, f"report: {page}")


def _check_named(model: str | None, gpu: str | None, engine: str | None) -> None:
    named = {"--model": model, "--gpu": gpu, "--engine": engine}
    if missing := [option for option, name in named.items() if not name]:
        raise ConfigError(
            f"{' and '.join(missing)} must say what to compose; see what there is "
            "with: evict-profile compose --list"
        )


def _compose_all(rows: "Source", tables: Path) -> None:
    from rich.progress import track

    from evict_profile.report.explore import write_explore
    from evict_profile.report.offers import show_refused
    from evict_profile.sources.every import ComposedTree, compose_all, newest_pairs
    from evict_profile.table import tables_in

    chosen = track(list(newest_pairs(rows)), "composing", console=stderr)
    outcomes = compose_all(rows, chosen, tables)
    show_refused(console, outcomes)
    made = sum("table" in each for each in outcomes.values())
    reasons = tables / ComposedTree.header_name
    say(console, f"{made} of {len(outcomes)} pairs have a table; see {reasons}")
    if made:
        write_explore(console, tables_in([tables]), tables / "tables.html")
