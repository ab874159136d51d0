"""The commands of the small world: `python -m examples.small_world --help`.

Imports wait until a command runs, so that the process can begin anew first.
"""

import os
import sys
from pathlib import Path
from typing import Literal

import typer
from typer import Argument, Context, Option

from evict_profile.cli import ErrorGroup, options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError
from evict_profile.runner import QUIET_CPU

app = typer.Typer(
    cls=ErrorGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A small MoE model with a drafter: train, trace and time it.",
)


@app.command()
def train(
    out: Path = Option(help="The folder of the world."),
    recipe: Literal["cpu", "tiny"] = Option("cpu", help="tiny takes seconds."),
    minutes: float | None = Option(None, help="For everything; else the recipe's."),
    seed: int = 0,
) -> None:
    """Train a target and its drafter on Python's standard library."""
    from examples.small_world.recipe import RECIPES
    from examples.small_world.train import train

    chosen = RECIPES[recipe]
    minutes = chosen.minutes if minutes is None else minutes
    # Not `<= 0`: that lets nan through.
    if not minutes > 0.0:
        raise ConfigError(f"--minutes {minutes:g}: must be a number above 0")
    train(out, chosen, minutes, seed)


@app.command()
def trace(
    ctx: Context,
    world: Path = Argument(exists=True, file_okay=False),
    out: Path = Option(help="The folder of the recording."),
    prompts: int = Option(24, min=1, help="Prompts of each workload."),
    tokens: int = Option(64, min=1, help="Tokens of each reply."),
    workload: options.Workloads = None,
    temperature: list[float] = Option([0.0], help="Repeatable."),
    seeds: int = Option(1, min=1, help="Replies a prompt, if it is > 0."),
    batch: list[int] = Option([1, 4, 16], min=1, help="Times whole steps; repeatable."),
    depth: int = Option(5, min=1, help="Levels of a draft tree."),
    topk: int = Option(8, min=1, help="Nodes expanded a level."),
    nodes: int = Option(60, min=1, help="Nodes verified at most."),
) -> None:
    """Record draft trees and what was accepted; the same command again continues."""
    if not any(temperature):
        reject_unused(ctx, {"seeds"}, "at temperature 0")
    from examples.small_world.plans import TracePlan
    from examples.small_world.recording import record

    plan = TracePlan(
        prompts=prompts,
        tokens=tokens,
        workloads=tuple(dict.fromkeys(workload or ())),
        depth=depth,
        topk=topk,
        nodes=nodes,
        seeds=seeds,
        temperatures=tuple(dict.fromkeys(temperature)),
        batches=tuple(dict.fromkeys(batch)),
    )
    record(plan, world, out, console)


@app.command()
def clock(
    table: options.TableFile,
    world: Path = Argument(exists=True, file_okay=False),
    traces: Path = Argument(exists=True, help="What 'trace' recorded."),
    prompts: int = Option(min=1, help="As traced."),
    part: options.Part = "1/1",
    batch: list[int] = Option([1], min=1, help="Repeatable."),
    workload: options.Workloads = None,
    temperature: list[float] | None = Option(
        None, help="Repeatable.", show_default="all"
    ),
    out: Path = Path("wall_clock.json"),
) -> None:
    """Decode traced replies by settings and a rule, beside what the replay predicts.

    Exit code 1 where the clock and the replay differ by more than 15 %.
    """
    from examples.small_world.wall_clock import Asked, check_replay

    asked = Asked(
        world,
        traces,
        table,
        prompts,
        part,
        batches=tuple(batch),
        workloads=workload or (),
        temperatures=temperature or (),
    )
    if check_replay(asked, out, console):
        raise typer.Exit(1)


def restart_quietly() -> None:
    """Run the same command again in the environment that runners get.

    Torch reads it when it is loaded. Threads that spin while they wait make training
    five times slower beside other work, and add to the CPU time that is measured.
    """
    if any(os.environ.get(name) != value for name, value in QUIET_CPU.items()):
        environment = os.environ | QUIET_CPU
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    restart_quietly()
    app()
