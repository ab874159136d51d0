"""The command that composes tables of GPUs from public measurements: one, or all."""

from pathlib import Path

from typer import Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, say, write_text

LISTED = {"list_them", "source", "model_name", "gpu", "engine"}
COMPOSED_BY_ALL = {"all_pairs", "source", "tables"}
"""Options of `compose` that --list and --all read."""


def compose(
    ctx: Context,
    model_name: str | None = Option(
        None, "--model", help="Name, YAML, or a HF config.json."
    ),
    gpu: str | None = Option(None, help="Such as h200; see --list."),
    engine: str | None = Option(None, help="sglang, vllm or trtllm."),
    engine_version: str | None = Option(None, help="Else the newest with such rows."),
    dtype: str = Option("bf16", help="Of the experts: bf16, fp8, fp8_block, nvfp4 ..."),
    tp: int = Option(1, min=1, help="GPUs, over all of which attention is cut."),
    ep: int = Option(1, min=1, help="Groups of them that share out the experts."),
    kernel: str | None = Option(None, help="Of the experts, where there are several."),
    list_them: bool = Option(False, "--list", help="Say what can be composed."),
    all_pairs: bool = Option(False, "--all", help="All that can, and a page of them."),
    source: options.Source = None,
    decode_us: str | None = Option(
        None, help="US@BATCH,CONTEXT of a served step of plain decoding."
    ),
    tables: options.Tables = Path("composed"),
) -> None:
    """Compose a cost table of a real GPU from public measurements of its parts."""
    if list_them or all_pairs:
        read = LISTED if list_them else COMPOSED_BY_ALL
        unread = {each.name or "" for each in ctx.command.params} - read
        check_read(ctx, unread, "with --list" if list_them else "with --all")
    from evict_profile.config import load_model
    from evict_profile.report import offers
    from evict_profile.report import public as report
    from evict_profile.sources.aiconfigurator import open_source
    from evict_profile.sources.compose import compose as composed
    from evict_profile.sources.compose import export_composed
    from evict_profile.sources.composer import Composer, DecodeTime, sweep_of
    from evict_profile.sources.pairs import check_asked, pairs, the_pair

    model = load_model(model_name) if model_name else None
    time = DecodeTime.of(decode_us) if decode_us else None
    if model and gpu and engine and not list_them:
        check_asked(model, gpu, engine, dtype, tp)
    rows = open_source(source)
    if list_them:
        show = offers.show_pairs if model else offers.show_offers
        show(console, pairs(rows, gpu, engine, model))
        return
    check_folder(tables)
    if all_pairs:
        from rich.progress import track

        from evict_profile.report.many import counts, many_tables_page
        from evict_profile.sources.every import compose_all, newest_pairs

        chosen = track(list(newest_pairs(rows)), "composing", console=stderr)
        outcomes = compose_all(rows, chosen, tables)
        page = tables / "tables.html"
        title = "What verification costs on GPUs that others measured"
        write_text(many_tables_page(title, outcomes, tables), page)
        offers.show_refused(console, outcomes)
        say(console, counts(outcomes))
        say(console, f"page: {page}")
        return
    if not (model and gpu and engine):
        raise ConfigError(
            "--model, --gpu and --engine say what to compose; see what there is with: "
            "evict-profile compose --list"
        )
    pair = the_pair(
        rows,
        model,
        gpu,
        engine,
        dtype,
        version=engine_version,
        tp=tp,
        ep=ep,
        kernel=kernel,
    )
    composer = Composer.of(rows, pair, model)
    say(stderr, "composing cells and fitting them: up to a minute")
    table, cells = composed(composer, sweep_of(), time)
    report.show_composed(console, table)
    path = export_composed(table, cells, tables)
    say(console, f"table: {path}")
    page = path.with_suffix(".html")
    write_text(report.composed_page(table, cells), page)
    say(console, f"report: {page}")
