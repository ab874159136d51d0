"""Commands that measure on this machine, fit what was measured, and audit rules."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, say
from evict_profile.lossless.rules import ACCEPTANCES, DRAFTS, RULES, SCORES

if TYPE_CHECKING:
    from evict_profile.sweep.store import Store


UNREAD = {
    "roofline": {"layers", "device"},
    "llama_cpp": {"layers", "device"},
    "tree_decoding": {"dtype"},
}
"""Options of a sweep that its runner does not read."""


def profile(
    ctx: Context,
    asked: options.SweepOptions,
    shard: str | None = Option(None, help="Only measure, and only shard i of n: i/n."),
    tables: options.Tables = Path("cost_tables"),
) -> None:
    """Sweep, fit, export a cost table and write its report.

    The same command again continues a sweep where it stopped.
    """
    if shard:
        check_read(ctx, {"tables"}, "with --shard, which writes no table")
        _measure(ctx, asked, shard)
        return
    check_folder(tables)
    store = _measure(ctx, asked)

    from evict_profile.fit.export import export_table
    from evict_profile.fit.fitted import fit_run
    from evict_profile.report.console import show_export, show_fit
    from evict_profile.report.cost_page import write_report

    fitted = fit_run(store)
    show_fit(console, fitted)
    table, path = export_table(fitted, tables)
    page = store.folder / "report.html"
    write_report(fitted, table, page)
    show_export(console, table, path)
    say(console, f"report: {page}")


def merge(
    shards: list[Path] = Argument(help="Run folders of the shards."),
    out: Path = Option(help="Folder of the merged run."),
) -> None:
    """Put the shards of one sweep together, where their machines are equal."""
    from evict_profile.sweep.merge import merge
    from evict_profile.sweep.store import Store

    merge([Store(folder) for folder in shards], Store(out))
    say(console, f"merged {len(shards)} shards into {out}")


def doctor() -> None:
    """Print what this machine is and what will work on it."""
    from evict_profile.doctor import examine
    from evict_profile.report.console import show_findings

    show_findings(console, examine())


def audit(
    drafts: str | None = Option(None, help=", ".join(DRAFTS)),
    accept: str | None = Option(None, help=", ".join(ACCEPTANCES)),
    rule: str | None = Option(None, help=", ".join(RULES)),
    score: str | None = Option(None, help=", ".join(SCORES)),
    json_out: bool = Option(False, "--json", help="Print JSON."),
) -> None:
    """Is a way to truncate lossless? Classified, and enumerated in fractions.

    Without options all combinations, as in docs/explanation/lossless.md: a minute.
    """
    from rich.progress import track

    from evict_profile.lossless.audit import COMBINATIONS, audit_of_words
    from evict_profile.lossless.audit import audit as audit_of
    from evict_profile.report.console import show_audit, show_audits

    words = {"drafts": drafts, "accept": accept, "rule": rule, "score": score}
    if any(words.values()):
        show_audit(console, audit_of_words(words), json_out)
    else:
        combinations = track(COMBINATIONS, "enumerating", console=stderr)
        show_audits(console, list(map(audit_of, combinations)), json_out)


def _measure(ctx: Context, asked: options.SweepOptions, shard: str = "1/1") -> "Store":
    """Run or continue a sweep, and say how it ended; the store of its run."""
    from evict_profile.config import load_model, load_sweep
    from evict_profile.config.sweep import LLAMA_CPP
    from evict_profile.records import replace

    # What is mistyped is told before the libraries of a sweep load.
    shape, spec = load_model(asked.model), load_sweep(asked.sweep_name)
    check_read(ctx, UNREAD.get(spec.runner, ()), f"by the runner {spec.runner}")
    if asked.lib and spec.runner != LLAMA_CPP:
        raise ConfigError(
            f"--lib is for the runner {LLAMA_CPP}, and the sweep '{spec.name}' runs "
            f"{spec.runner}; leave it out, or give --sweep llama"
        )
    from evict_profile.sweep.engine import Limits, run_sweep
    from evict_profile.sweep.store import Store

    names = ("layers", "device", "dtype")
    given = {name: value for name in names if (value := getattr(asked, name))}
    if asked.lib:
        given["llama"] = replace(spec.llama, library=str(asked.lib.absolute()))
    spec = replace(spec, **given)
    store = Store(asked.out or Path("runs") / shape.name / spec.name)
    limits = Limits(asked.max_minutes, shard)
    finished = run_sweep(spec, shape, store, limits, console, asked.python)
    end = "finished" if finished else "stopped; the same command continues it"
    say(console, f"sweep {end}: {store.folder}")
    return store
