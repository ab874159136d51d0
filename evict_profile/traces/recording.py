"""Recordings with an engine of ours: a folder of parts, one a reply of a plan.

Each part is written in one move and says what it is a part of. So Ctrl-C, a crash or a
full disk costs one reply at most, and the same command records the parts that lack.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
from rich.console import Console

from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import (
    ConfigError,
    Interrupted,
    RunnerError,
    StoreError,
    TraceError,
)
from evict_profile.io import check_outputs, make_folder, say, sole_writer
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import Facts, differences, parse, to_mapping
from evict_profile.run_folder import write_table
from evict_profile.runner import CLOCK_STEPS, Message, Runner
from evict_profile.traces.schema import SCHEMA, Metadata, mark, metadata_of, read
from evict_profile.traces.trace import TraceInfo

RUNNER = "tree_decoding"


@dataclass(frozen=True, kw_only=True)
class RecordingPlan:
    """What a recording asks for; a subclass says of which replies.

    Attributes:
        workloads: all that the checkpoint has text of, if empty.
        depth, topk, nodes: levels of a tree, nodes expanded a level, nodes verified.
        batches: batch sizes whose whole steps are timed.
    """

    schema: ClassVar[str] = SCHEMA

    prompts: int = 24
    tokens: int = 64
    workloads: tuple[str, ...] = ()
    depth: int = 5
    topk: int = 8
    nodes: int = 60
    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 128

    def replies(self) -> Iterator[Any]:
        """What is recorded, in order."""
        raise NotImplementedError

    def record(self, engine: Runner, about: TraceInfo, reply: Any) -> pa.Table:
        """The rows of one reply."""
        raise NotImplementedError

    def within(self, available: Mapping[str, int], about: TraceInfo) -> Self:
        """This plan on a checkpoint, which has so many prompts of each workload."""
        for workload in self.workloads or available:
            if workload not in available:
                raise ConfigError(
                    f"--workload {workload}: {about.model} has {', '.join(available)}"
                )
            if available[workload] < self.prompts:
                raise ConfigError(
                    f"--prompts {self.prompts}: workload {workload} of {about.model} "
                    f"has {available[workload]}; give as many at most"
                )
        return replace(self, workloads=self.workloads or tuple(available))

    def facts(self, about: TraceInfo) -> Facts:
        """What two recordings must share to be one, as JSON gives it back."""
        facts: Facts = json.loads(json.dumps({**to_mapping(about), **to_mapping(self)}))
        return facts


def record(
    plan: RecordingPlan,
    world: Path,
    out: Path,
    console: Console,
    python: str | None = None,
    runner: str = RUNNER,
) -> None:
    """Record a plan into a folder, or the rest of it."""
    if not world.is_dir():
        raise ConfigError(
            f"{world}: is no folder; give a small world, such as worlds/stdlib"
        )
    check_outputs([out / "00000.parquet"], [world])
    make_folder(out)
    log = out.with_name(f"{out.name}.log")
    try:
        with sole_writer(out), Runner(runner, python, log) as engine:
            stored = _stored(out, plan)
            reference_us = stored.about.reference_us if stored else 0.0
            plan, about = _open_world(engine, world, plan, reference_us)
            with progress_bar(console) as shown, interruptible(Deadline()) as deadline:
                _record(plan, about, stored, engine, out, deadline, shown)
    finally:
        with suppress(OSError):  # A folder that holds anything stays.
            out.rmdir()
    say(console, f"recording: {out} ({len(list(plan.replies()))} replies)")


def _record(
    plan: RecordingPlan,
    about: TraceInfo,
    stored: Metadata | None,
    engine: Runner,
    out: Path,
    deadline: Deadline,
    shown: ProgressBar,
) -> None:
    """Take clocks, which takes seconds, and record each reply that lacks."""
    facts, replies = plan.facts(about), list(plan.replies())
    parts = {reply: out / f"{i:05d}.parquet" for i, reply in enumerate(replies)}
    clocks = []
    if stored:
        if apart := differences(facts, stored.recorded):
            raise StoreError(
                f"{out}: holds replies that cannot be continued here "
                f"({'; '.join(apart)}); choose another --out"
            )
        clocks = list(stored.clocks)
    for batch in () if stored else plan.batches:
        clocks.append(engine.clock(batch))
        if deadline.reached():
            raise Interrupted("interrupted before the first reply; nothing is kept")
    todo = [reply for reply, part in parts.items() if not part.exists()]
    if stored and todo:
        shown.say(f"continuing {out}")
    for reply in shown.track("replies", todo, len(parts)):
        rows = plan.record(engine, about, reply)
        found = Metadata(about, tuple(clocks), facts, len(parts))
        write_table(mark(rows, found, plan.schema), parts[reply])
        if deadline.reached():
            raise Interrupted(
                f"interrupted; {out} is kept, the same command continues it"
            )


def _stored(out: Path, plan: RecordingPlan) -> Metadata | None:
    """What the parts that are there say of the recording; None without any."""
    first = min(out.glob("*.parquet"), default=None)
    if first is None:
        return None
    found = metadata_of(read(first), str(first), plan.schema)
    if not found.recorded:
        raise TraceError(
            f"{out}: is a trace that 'evict-profile trace' has not recorded; choose "
            "another --out"
        )
    return found


def _open_world(
    engine: Runner, world: Path, plan: RecordingPlan, reference_us: float
) -> tuple[RecordingPlan, TraceInfo]:
    """The plan as the world can serve it, and what the runner says of itself.

    Clocks are stated by `reference_us`, which the runner measures where it is 0.
    """
    names = ("depth", "topk", "nodes", "prompt_tokens", "tokens", "batches")
    options = {
        **{name: getattr(plan, name) for name in names},
        "clock_steps": CLOCK_STEPS,
        "reference_us": reference_us,
    }
    ask = {"do": "open_world", "world": str(world.resolve()), "options": options}
    answer = engine.ask(ask).get("about", {})
    about = parse(
        TraceInfo, answer, "the runner's answer to open_world", extra_keys=True
    )
    available: dict[str, int] = answer.get("workloads", {})
    if not available:
        raise RunnerError("the runner names no workloads; see docs/reference/traces.md")
    return plan.within(available, about), about


def rows_of(
    reply: Any,
    steps: list[Message],
    schema: pa.Schema,
    decode: Callable[[Message], Message] = dict,
) -> pa.Table:
    """A runner's steps of one reply, one row a step; `decode` turns a step into one."""
    named = to_mapping(reply)
    needed = [name for name in schema.names if name not in named]
    try:
        found = [decode({name: step[name] for name in needed}) for step in steps]
        return pa.Table.from_pylist([{**named, **row} for row in found], schema=schema)
    except KeyError as error:
        raise RunnerError(
            f"the runner answered a step without {error.args[0]}; a step needs "
            f"{', '.join(needed)}"
        ) from error
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise RunnerError(
            f"the runner answered a step that is none ({error}); fix the runner"
        ) from error
