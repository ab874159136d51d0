"""Commands about rules of truncation: which are lossless, and which are fast."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evict_profile.cli.shared import console
from evict_profile.io import say


def audit(
    drafts: Annotated[str | None, typer.Option(help="topk or sampled.")] = None,
    accept: Annotated[
        str | None, typer.Option(help="target-only, match or rejection.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="fixed, threshold, stop, ratio or rate.")
    ] = None,
    score: Annotated[str | None, typer.Option(help="own, shifted or max.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Is a way to truncate lossless? Classified, and enumerated in fractions.

    Without options, the whole table of docs/explanation/lossless.md, in about a minute.
    """
    from rich.progress import track

    from evict_profile.lossless.audit import AUDITS, audit_all, audit_of_words
    from evict_profile.report.console import show_audit, show_audits

    words = {"drafts": drafts, "accept": accept, "rule": rule, "score": score}
    if any(words.values()):
        show_audit(console, audit_of_words(words), json_out)
    else:
        on_stderr = Console(stderr=True)
        audits = track(audit_all(), "enumerating", AUDITS, console=on_stderr)
        show_audits(console, list(audits), json_out)


def bench(
    only: Annotated[
        str | None, typer.Option(help="decision or shapes; else both.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Simulations of each mix.")] = 20,
    steps: Annotated[int, typer.Option(help="Steps of each simulation.")] = 2000,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = Path("bench.json"),
) -> None:
    """Time the decision, and compare truncation rules by simulation."""

    from evict_profile.bench.report import as_markdown, run_bench
    from evict_profile.io import check_writable, write_json

    check_writable(out)
    on_stderr = Console(stderr=True)
    found = run_bench(only, seeds, steps, lambda text: say(on_stderr, text))
    write_json(found, out)
    say(console, as_markdown(found))
    say(console, f"bench: {out}")
