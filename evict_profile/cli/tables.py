"""Commands about a cost table: to export it, read it, compare it, check it."""

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, say, write_text

if TYPE_CHECKING:
    from evict_profile.table import CostTable

QUANTISED = re.compile(r"(?i)(?<![a-z])(mx|nv)?fp[48]|int[48]|awq|gptq")
"""Formats of weights in the names of checkpoints."""
PLANNERS = {"out", "context", "draft_ms", "max_tokens"}
"""Options of `export` that only --format reads."""
SWEEP = "sweep.json"
"""The header of a run."""


def export(
    ctx: Context,
    source: Path = Argument(
        exists=True, help="Run folder, or with --format a cost table (.json)."
    ),
    tables: options.Tables = Path("cost_tables"),
    format_name: str | None = Option(
        None, "--format", help="Of a planner: sglang-sps or vllm-curves."
    ),
    out: Path | None = Option(None, help="Its file; else named as the format."),
    context: int | None = Option(None, help="Of the table; else its smallest."),
    draft_ms: float | None = Option(None, help="Time of one drafting step, if known."),
    max_tokens: int | None = Option(None, min=1, help="Tokens it verifies at once."),
) -> None:
    """Write a run's cost table, if it passes every gate; or a table for a planner."""
    if not format_name:
        check_read(ctx, PLANNERS, "without --format")
        check_folder(tables)
        from evict_profile.fit.export import export_run, outcome

        say(console, outcome(*export_run(source, tables)))
        return
    check_read(ctx, {"tables"}, f"by --format {format_name}")
    from evict_profile.integrations.exporters import write_format
    from evict_profile.table import CostTable, files_of

    path = out or Path(f"{format_name}.json")
    check_outputs([path], files_of(source))
    table = CostTable.load(source).as_served()
    made = write_format(table, format_name, path, context, draft_ms, max_tokens)
    for line in (*made.notes, f"{format_name}: {path}"):
        say(console, line)


def advise(
    ctx: Context,
    table: Path | None = Argument(
        None, callback=options.whole_table, help="A cost table (.json); or name it:"
    ),
    model: str | None = Option(None, help="Name, also as on Hugging Face."),
    gpu: str | None = Option(None, help="Such as h200."),
    engine: str | None = Option(None, help="sglang, vllm or trtllm."),
    tp: int | None = Option(None, min=1, help="GPUs, if several tables are there."),
    dtype: str | None = Option(None, help="Of the experts: bf16, fp8, fp8_block ..."),
    source: options.Source = None,
    accept: str = Option(
        help="0.75, lengths 1.84,2.51,3.01, shares 0.8,0.65, FILE.yaml[:curve], "
        "FILE.json of vLLM's metrics, or TRACE.parquet."
    ),
    batch: list[int] | None = Option(
        None,
        min=1,
        help="All draft lengths of this one; repeatable.",
        show_default="the best of each of the table's",
    ),
    traffic: str | None = Option(
        None,
        help="Share of plain decoding's time by batch, as 1:.5,8:.3,64:.2.",
        show_default="equal",
    ),
    context: int | None = Option(
        None, help="Tokens in the cache.", show_default="its smallest"
    ),
    draft_level_ms: float | None = Option(None, help="Time to draft one token more."),
    draft_table: Path | None = Option(
        None, callback=options.whole_table, help="Of the draft's GGUF, for llama.cpp."
    ),
    reader: Literal["vllm", "sglang", "trtllm", "llama-cpp"] | None = Option(
        None, "--for", help="Write what it reads."
    ),
    out: Path | None = Option(
        None, help="That file.", show_default="advice-ENGINE.json, or .yaml"
    ),
    as_json: bool = Option(False, "--json", help="Print one JSON document alone."),
    markdown: bool = Option(False, "--md", help="Print a Markdown table alone."),
) -> None:
    """How much to draft at each batch, and whether to at all, from acceptance alone."""
    if as_json and markdown:
        raise ConfigError("--json and --md are two answers; give one of them")
    if table:
        by_name = {"model", "gpu", "engine", "tp", "dtype", "source"}
        check_read(ctx, by_name, "beside a table's file")
    if not reader:
        check_read(ctx, {"out"}, "without --for")
    if reader == "llama-cpp":
        check_read(ctx, {"batch", "traffic"}, "by llama.cpp, which runs one request")

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


def _named_table(
    model: str | None,
    gpu: str | None,
    engine: str | None,
    tp: int | None,
    dtype: str | None,
    source: Path | None,
) -> "CostTable":
    """The table of these names that is there, or one composed on the spot."""
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

    from evict_profile.config import load_model
    from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, open_source
    from evict_profile.sources.compose import compose
    from evict_profile.sources.composer import Composer, sweep_of
    from evict_profile.sources.pairs import check_asked, the_pair

    shape = load_model(model)
    check_asked(shape, gpu, engine, dtype or "bf16", tp or 1)
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
    pair = the_pair(rows, shape, gpu, engine, dtype or "bf16", tp=tp or 1)
    return compose(Composer.of(rows, pair, shape), sweep_of())[0]


def report(table: options.TableFile, out: options.Page = Path("report.html")) -> None:
    """Write the report of a table as one HTML file."""
    from evict_profile.table import COMPOSED, CostTable, files_of

    check_outputs([out], files_of(table))
    if CostTable.load(table).origin == COMPOSED:
        from evict_profile.report.public import page_of

        write_text(page_of(table), out)
    else:
        from evict_profile.fit.fitted import fitted_of_table
        from evict_profile.report.cost_page import write_report

        write_report(*fitted_of_table(table), out)
    say(console, f"report: {out}")


def show(
    ctx: Context,
    paths: list[Path] = Argument(
        [],
        metavar="[TABLE|RUN|TREE]...",
        help="A cost table (.json), a run's folder, or folders of tables.",
        show_default="EVICT_PROFILE_TABLES, or the shipped",
    ),
    device: str | None = Option(None, help="Only tables of this, as NVIDIA_H200."),
) -> None:
    """Print a table or the fit of a run; or list tables: key, age, error, gates."""
    from evict_profile.report.tables import show_found, show_table
    from evict_profile.table import CostTable, of_device, search_path, tables_in

    named = paths[0] if len(paths) == 1 else None
    is_run = named is not None and (named / SWEEP).is_file()
    if named and (is_run or not named.is_dir()):
        check_read(ctx, {"device"}, "beside a table or a run")
        if is_run:
            from evict_profile.fit.fitted import fit_run
            from evict_profile.report.fits import show_fit
            from evict_profile.sweep.store import Store

            show_fit(console, fit_run(Store(named)))
        else:
            show_table(console, CostTable.load(named))
        return
    if files := [path for path in paths if path.is_file()]:
        raise ConfigError(f"{files[0]}: is a file; show it alone, or compare with diff")
    found = tables_in(paths or search_path())
    if not found:
        where = ", ".join(map(str, paths or search_path()))
        raise ConfigError(
            f"no table and no sweep lies in {where} (one that the union test refused "
            "leaves none); name another folder, or measure with: evict-profile profile"
        )
    show_found(console, of_device(found, device) if device else found)


def diff(before: options.TableFile, after: options.TableFile) -> None:
    """Print what differs between two tables; exit code 1 if anything does."""
    from evict_profile.report.tables import show_diff
    from evict_profile.table import CostTable

    if show_diff(console, CostTable.load(before), CostTable.load(after)):
        raise typer.Exit(1)
    say(console, "no difference in key, costs or error")


def check(
    ctx: Context,
    table: Path = Argument(help="A cost table (.json), or a tree with --recheck."),
    recheck: bool = Option(False, "--recheck", help="Measure a few cells again."),
    python: options.Python = None,
    address: str | None = Option(None, help="Of a Ray cluster, for a tree."),
    reuse_for: str | None = Option(
        None, help="State in its next version that it serves this engine version too."
    ),
    who: str | None = Option(None, help="Who answers for that."),
    why: str | None = Option(None, help="The reason to believe it."),
    rechecked: str | None = Option(
        None, help="What was measured of that version, and what it said."
    ),
) -> None:
    """Check a table's hash, samples and gates; exit code 1 if any fails or drifted."""
    if not recheck:
        check_read(ctx, {"python", "address"}, "without --recheck")
    if not reuse_for:
        check_read(ctx, {"who", "why", "rechecked"}, "without --reuse-for")
    if table.is_dir():
        check_read(ctx, {"reuse_for"}, "of a tree")
        _check_tree(table, recheck, python, address)
        return
    options.whole_table(table)  # what is mistyped, before the other libraries load
    check_read(ctx, {"address"}, "of one table, which is rechecked here")
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.console import show_gates
    from evict_profile.report.fits import show_recheck
    from evict_profile.sweep.recheck import recheck_cells

    fitted, loaded = fitted_of_table(table)
    say(console, f"{table}: schema, hash and samples are whole")
    show_gates(console, loaded.gates)
    if not all(gate.passed for gate in loaded.gates):
        raise typer.Exit(1)
    if recheck:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "runner.log"
            found = recheck_cells(loaded, fitted.frame, log, python, console)
        show_recheck(console, found)
        if found.change.verdict == "drifted":
            raise typer.Exit(1)
    if reuse_for:
        _state_reuse(table, reuse_for, who or "", why or "", rechecked or "")


def _check_tree(
    tree: Path, recheck: bool, python: str | None, address: str | None
) -> None:
    """Recheck the newest table of each key; a file that is no table stops nothing."""
    if not recheck:
        raise ConfigError(f"{tree}: is a folder; name a table in it, or add --recheck")
    from evict_profile.fleet.recheck import newest_tables, recheck_tree
    from evict_profile.table import tables_in

    found = tables_in([tree])
    damaged = [each.refused for each in found if each.refused]
    for refused in damaged:
        say(console, f"not a table: {refused}")
    answers = recheck_tree(newest_tables(found), python, address)
    for path, (_, words) in answers.items():
        say(console, f"{path}: {words}")
    if damaged or any(status > 0 for status, _ in answers.values()):
        raise typer.Exit(1)


def _state_reuse(table: Path, version: str, who: str, why: str, rechecked: str) -> None:
    """State in a table's next version that it serves another engine version."""
    from datetime import UTC, datetime

    from evict_profile.fit.export import export_reuse
    from evict_profile.table import Reuse

    today = datetime.now(UTC).date().isoformat()
    try:
        reuse = Reuse(version, who, why, rechecked, today)
    except ValueError as error:
        raise ConfigError(f"{error}; give it") from None
    made, path = export_reuse(table, reuse)
    say(console, str(made.reuse[-1]))
    say(console, f"table: {path}")
