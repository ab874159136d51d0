from functools import partial
from pathlib import Path
from typing import Literal

from typer import Option

from evict_profile.cli import options
from evict_profile.cli.options import console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_outputs, parse_share, say, write_text

Synthetic = Literal[
    "easy", "hard", "bimodal", "bursts", "switch", "overconfident", "underconfident"
]


def replay(
    table: options.TableFile,
    traces: options.Traces = None,
    synthetic: Synthetic | None = Option(
        None, help="Synthetic workload instead of a trace."
    ),
    batch: list[str] | None = Option(
        None, help="Batch sizes, as 1,8; repeatable.", show_default="1"
    ),
    traffic: str | None = Option(
        None, help="One verdict over batches, by share of time, as 1:.25,8:.25,64:.5."
    ),
    workload: options.Workloads = None,
    temperature: list[float] | None = Option(
        None, help="Use only this temperature; repeatable.", show_default="all"
    ),
    part: options.Part = "1/1",
    seeds: int = Option(5, min=1, help="Random orders of the replies."),
    out: options.Page = Path("replay.html"),
    json_out: options.Json = None,
) -> None:
    """Replay a trace under drafting policies, and compare them."""
    if bool(traces) == bool(synthetic):
        raise ConfigError("give either a trace file, or --synthetic easy")
    if batch and traffic:
        raise ConfigError("--traffic names its batches; leave --batch out")
    share = parse_share("--part", part)
    from evict_profile.advice.plan import traffic_of
    from evict_profile.replay.study import replay_study, replayed_trace
    from evict_profile.report.replay_page import replay_page, show_replay
    from evict_profile.table import CostTable, files_of

    shares = traffic_of(traffic) if traffic else None
    batches = [*shares] if shares else options.batches_of(batch or ["1"])
    check_outputs([out, json_out], [traces, *files_of(table)])
    covered = CostTable.load(table)
    chosen = replayed_trace(
        traces, synthetic or "", covered, workload or [], temperature or [], share
    )
    say_so = partial(say, stderr)
    study = replay_study(chosen, covered, batches, seeds, say_so, shares)
    show_replay(console, study)
    write_text(replay_page(study), out)
    say(console, f"report: {out}")
    if json_out:
        write_text(study.as_json(), json_out)
        say(console, f"numbers: {json_out}")
