"""The command that estimates a GPU's table from public measurements of kernels.

What kernels take is known; the host and the drafter of a server are not. So it answers
in break-evens, and names the two runs that settle whether drafting pays.
"""

from pathlib import Path

from typer import Option

from evict_profile.cli import options
from evict_profile.cli.options import console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, say, write_text


def estimate(
    model_name: str | None = Option(
        None,
        "--model",
        help="Model: a shipped name, a YAML, a HF config.json or its folder.",
    ),
    gpu: str | None = Option(None, help="GPU name, such as h200."),
    engine: str | None = Option(None, help="Engine: sglang, vllm or trtllm."),
    dtype: str | None = Option(
        None,
        help="Type of the expert weights: bf16, fp8, fp8_block, nvfp4 ...",
        show_default="as published",
    ),
    tp: int | None = Option(
        None, min=1, help="Tensor-parallel size.", show_default="the fewest that fit"
    ),
    source: options.Source = None,
    tables: options.Tables = Path("cost_tables/composed"),
    as_json: options.AsJson = False,
) -> None:
    """Estimate a GPU's table from public kernel timings.

    Without names, GPUs and engines with timings are listed.
    """
    from evict_profile.config import load_model
    from evict_profile.sources.aiconfigurator import open_source

    if (model_name, gpu, engine, dtype, tp) == (None,) * 5:
        from evict_profile.report.offers import show_offers

        show_offers(console, open_source(source), as_json)
        return
    if not (model_name and gpu and engine):
        raise ConfigError(
            "--model, --gpu and --engine must say what to estimate; see what there is "
            "with: evict-profile estimate"
        )
    model = load_model(model_name)
    from evict_profile.advice.lookup import check_format
    from evict_profile.sources.asked import placement_of
    from evict_profile.sources.estimate import estimated

    if not Path(model_name).exists():  # A file states its format.
        check_format(model_name, dtype)
    asked = placement_of(model, gpu, engine, dtype, tp)
    rows = open_source(source)
    check_folder(tables)
    from evict_profile.report.model import model_line
    from evict_profile.report.public import composed_page, show_estimate

    def announce(line: str) -> None:
        say(stderr, f"{model_line(model, model_name)}\n{line}")

    table, cells = estimated(rows, model, asked, announce)
    from evict_profile.sources.compose import export_composed

    path = export_composed(table, cells, tables)
    page = path.with_suffix(".html")
    write_text(composed_page(table, cells), page)
    show_estimate(console, table, path, page, as_json)
