import asyncio
import os
from math import inf
from pathlib import Path
from shlex import quote

from typer import Argument, Option

from evict_profile.cli import options
from evict_profile.cli.imports import read_files
from evict_profile.cli.options import console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_writable, say


def probe(
    url: str = Argument(
        metavar="URL", help="URL of the server, such as http://localhost:8000."
    ),
    batch: list[str] = Option(
        ["1,4,16"], help="Batch sizes: requests decoded at once, as 1,8; repeatable."
    ),
    minutes: float = Option(5.0, help="Minutes to probe, without warm-up."),
    out: Path = Option(help="File of runs (.jsonl); new runs are added to it."),
    drafts: int | None = Option(
        None,
        min=0,
        help="Number of draft tokens K. Needed only if the server does not report it.",
    ),
    model: str | None = Option(
        None, help="Model name. Needed only if the server has several."
    ),
    raw: bool = Option(False, help="Send plain prompts, without a chat template."),
    prompts: Path | None = Option(
        None,
        help="File of prompts, apart by empty lines.",
        show_default="the package's",
    ),
    routes: bool = Option(
        False,
        help="Learn how many experts the replies activate, from a server that returns "
        "them (--enable-return-routed-experts). No step is timed.",
    ),
) -> None:
    """Measure the decode steps of a running server.

    The same command adds to what was measured before.
    """
    if not 0.0 < minutes < inf:
        raise ConfigError(f"--minutes {minutes}: give minutes above 0, as 5")
    sizes = options.batches_of(batch)
    check_writable(out)

    from evict_profile.progress import progress_bar
    from evict_profile.served.probe.loop import ProbeConfig
    from evict_profile.served.probe.loop import probe as probe_server
    from evict_profile.served.probe.routes import learn_routes
    from evict_profile.served.probe.server import Server

    config = ProbeConfig(sizes, minutes, drafts, raw, model, prompts)
    server = Server(url, os.environ.get("OPENAI_API_KEY", ""))
    with progress_bar(stderr) as bar:
        run = (learn_routes if routes else probe_server)(server, out, config, bar)
        result = asyncio.run(run)

    if result:
        from evict_profile.report.served import show_routes

        show_routes(console, result)
    say(console, f"runs: {out}")
    if not result:
        _show_runs(out)


def _show_runs(out: Path) -> None:
    from evict_profile.report.served import show_runs

    runs, left_out, _ = read_files([(out, None, "")])
    show_runs(console, runs, left_out)
    say(console, f"next: {_next_step(out, {run.drafts for run in runs})}")


def _next_step(out: Path, drafts: set[int]) -> str:
    if 0 not in drafts:
        return f"probe the server without drafts into the same file, {out}"
    if len(drafts) == 1:
        return f"probe the server again with K = 3 into the same file, {out}"
    return f"evict-profile import {quote(str(out))} --model NAME --gpu NAME"
