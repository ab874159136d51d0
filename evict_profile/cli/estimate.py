"""The command that estimates a GPU's table from public measurements of kernels.

What kernels take is known; the host and the drafter of a server are not. So it answers
in break-evens, and names the two runs that settle whether drafting pays.
"""

import shlex
from pathlib import Path

from typer import Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, say, write_text

USED_BY_LIST = {"list_them", "model_name", "gpu", "engine", "as_json"}


def estimate(
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
    list_them: bool = Option(False, "--list", help="List what can be estimated."),
    source: options.Source = None,
    tables: options.Tables = Path("composed"),
    as_json: options.AsJson = False,
) -> None:
    """Estimate a GPU's table from public kernel timings."""
    from evict_profile.config import load_model

    if list_them:
        unused = {each.name or "" for each in ctx.command.params} - USED_BY_LIST
        reject_unused(ctx, unused, "with --list")
        from evict_profile.report.offers import show_offers
        from evict_profile.sources.asked import offered

        model = load_model(model_name) if model_name else None
        show_offers(console, offered(model, gpu, engine), bool(model), as_json)
        return
    if not (model_name and gpu and engine):
        raise ConfigError(
            "--model, --gpu and --engine must say what to estimate; see what there is "
            "with: evict-profile estimate --list"
        )
    model = load_model(model_name)
    from evict_profile.sources.asked import Deployment, check_fit, check_names

    dtype = dtype or model.checkpoint_dtype
    gpu = check_names(gpu, engine, dtype)
    check_fit(model, Deployment(gpu, engine, dtype, tp))
    from evict_profile.sources.aiconfigurator import open_source
    from evict_profile.sources.pairs import kernels_of

    rows = open_source(source)
    check_folder(tables)
    kernels = kernels_of(rows, model, gpu, engine, dtype, tp, engine_version)

    from evict_profile.report.public import composed_page, show_estimate
    from evict_profile.sources.compose import compose, composer_of, export_composed
    from evict_profile.sources.composer import sweep_of

    say(stderr, "estimating: about 15 s")
    table, cells = compose(composer_of(rows, kernels, model), sweep_of())
    path = export_composed(table, cells, tables)
    page = path.with_suffix(".html")
    write_text(composed_page(table, cells), page)
    show_estimate(console, table, path, page, as_json)


def compose(ctx: Context) -> None:
    """Answer the former name of `estimate`."""
    words = shlex.join(["--list"] if "--all" in ctx.args else ctx.args)
    raise ConfigError(
        f"compose is called estimate; type: evict-profile estimate {words}".rstrip()
    )
