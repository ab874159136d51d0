"""The audit of truncation rules on a terminal."""

import json
from collections.abc import Sequence

from rich.console import Console

from evict_profile.io import say
from evict_profile.lossless.audit import Audit, summary
from evict_profile.report.console import Rows, print_rows


def show_audit(console: Console, audit: Audit, as_json: bool) -> None:
    numbers, verdict = audit.as_json(), audit.verdict
    if as_json:
        say(console, json.dumps(numbers, indent=1))
        return
    say(console, f"{'lossless' if verdict.lossless else 'BIASED'}: {audit.combination}")
    say(console, verdict.why)
    worlds, largest = numbers["worlds"], float(audit.max_tv)
    say(console, f"largest total variation over {worlds} exact worlds: {largest:.3f}")
    if audit.readable:
        say(console, f"for example: {audit.readable}")
    if verdict.instead:
        say(console, f"lossless instead: {verdict.instead}")


def show_audits(console: Console, audits: Sequence[Audit], as_json: bool) -> None:
    """A line for combinations of equal verdict and reason."""
    if as_json:
        say(console, json.dumps([audit.as_json() for audit in audits], indent=1))
        return
    cells = [(name, f"{float(tv):.3f}" if tv else "0") for name, tv in summary(audits)]
    rows = Rows(("combination", "max TV"), cells)
    print_rows(console, rows, "when truncation is lossless")
