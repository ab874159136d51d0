"""The command about a server that runs."""

import asyncio
import os
from math import inf
from pathlib import Path

from typer import Argument, Option

from evict_profile.cli.options import console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_writable, say


def probe(
    url: str = Argument(help="Of the server, such as http://localhost:8000."),
    batch: str = Option("1,4,16", help="Requests decoded side by side."),
    minutes: float = Option(5.0, help="Of waves, warm-up apart."),
    out: Path = Option(help="File of runs (.jsonl); another K adds to it."),
    drafts: int | None = Option(None, min=0, help="K, if the server tells none."),
    model: str | None = Option(None, help="One of those served, if several are."),
    raw: bool = Option(False, help="Complete texts, without a chat template."),
) -> None:
    """Time whole steps of a running server; the same command again continues."""
    from evict_profile.calibrate.probed import settings
    from evict_profile.probe.loop import Plan
    from evict_profile.probe.loop import probe as probe_server
    from evict_profile.probe.server import Server
    from evict_profile.progress import progress_bar
    from evict_profile.report.served import show_settings

    if not 0.0 < minutes < inf:
        raise ConfigError(f"--minutes {minutes}: give minutes above 0, as 5")
    plan = Plan(_sizes(batch), minutes, drafts, raw, model)
    check_writable(out)
    server = Server(url, os.environ.get("OPENAI_API_KEY", ""))
    with progress_bar(stderr) as bar:
        asyncio.run(probe_server(server, out, plan, bar))
    show_settings(console, settings(out))
    say(console, f"runs: {out}")


def _sizes(text: str) -> list[int]:
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise ConfigError(
            f"--batch {text}: give whole numbers of at least 1, as 1,4,16"
        )
    return sizes
