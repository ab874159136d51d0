"""Recording traces with an engine of ours: a runner decodes, and its trees are kept.

The runner verifies every tree whole and answers one at every position, whatever was
committed there: a trace of cut trees could not tell a good cut from a lossy one.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from evict_profile.config.edge import parse
from evict_profile.errors import (
    ConfigError,
    EvictProfileError,
    Interrupted,
    RunnerError,
)
from evict_profile.sweep.client import Message, Runner
from evict_profile.sweep.engine import Deadline
from evict_profile.sweep.progress import Display, display
from evict_profile.sweep.run import interruptible
from evict_profile.terminal import say
from evict_profile.traces.load import trace_of
from evict_profile.traces.plan import Plan, ReplyKey
from evict_profile.traces.rows import rows_of
from evict_profile.traces.schema import marked
from evict_profile.traces.store import TraceStore
from evict_profile.traces.trace import About, Clock

RUNNER = "tree_decoding"
CLOCK_STEPS = 24


@dataclass(frozen=True)
class State:
    """Where a recording stands, in replies."""

    reply: str
    done: int
    left: int
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"{self.done} of {self.done + self.left} replies ({self.reply}), about "
            f"{self.seconds_left / 60.0:.1f} min left"
        )


def record(
    world: Path,
    out: Path,
    plan: Plan,
    console: Console,
    python: str | None = None,
    runner: str = RUNNER,
) -> None:
    """Record a plan's replies and clocks into a file, or the rest of them.

    Raises:
        ConfigError: the world cannot serve the plan.
        StoreError: another recording is there.
        RunnerError: the runner cannot open the world, or answers what no step can be.
        Interrupted: by Ctrl-C; the replies up to then are stored.
    """
    if not world.is_dir():
        raise ConfigError(
            f"{world}: is no folder; give a small world, such as worlds/stdlib"
        )
    store = TraceStore(out)
    with (
        interruptible(Deadline()) as deadline,
        Runner(runner, python, store.log) as engine,
        display(console) as shown,
    ):
        recording = open_recording(engine, world, plan, store)
        steps = recording.run(deadline, shown)
    say(console, f"trace: {out} ({steps})")


@dataclass(frozen=True)
class Recording:
    """A recording in progress."""

    engine: Runner
    plan: Plan
    about: About
    store: TraceStore

    def run(self, deadline: Deadline, shown: Display) -> str:
        """Record what is missing; what the file then holds, in words.

        Clocks come first: they take seconds, and a batch size that the engine
        cannot run is then known before the replies.
        """
        if not self.store.begin(self.plan, self.about):
            return "recorded already"
        if self.store.continues():
            shown.say(f"continuing {self.store.folder}")
        for _ in self._work(shown):
            if deadline.reached():
                raise Interrupted(
                    f"interrupted; {self.store.folder} is kept, the same command "
                    "continues it"
                )
        steps = self.store.finish(self.plan, self.about)
        return f"{len(list(self.plan.replies()))} replies, {steps} steps"

    def _work(self, shown: Display) -> Iterator[None]:
        """One clock or one reply at a time, each stored before the next."""
        for batch in self.plan.batches:
            if not self.store.has_clock(batch):
                self.store.keep_clock(self._clock(batch))
                yield
        replies = list(enumerate(self.plan.replies()))
        todo = [(i, key) for i, key in replies if not self.store.has_reply(i)]
        start = time.monotonic()
        for count, (index, key) in enumerate(todo, start=1):
            self.store.keep_reply(index, self._reply(key))
            left = len(todo) - count
            pace_s = (time.monotonic() - start) / count
            shown.show(State(str(key), len(replies) - left, left, pace_s * left))
            yield

    def _clock(self, batch: int) -> Clock:
        ask = {"do": "clock", "batch": batch, "steps": CLOCK_STEPS}
        answer = {"batch": batch, **self.engine.ask(ask)}
        return parse(Clock, answer, f"the runner's clock of batch {batch}")

    def _reply(self, key: ReplyKey) -> pa.Table:
        ask: Message = {
            "do": "trace",
            "workload": key.workload,
            "prompt": key.prompt,
            "prompts": self.plan.prompts,
            "seed": key.seed,
            "temperature": key.temperature,
            "tokens": self.plan.tokens,
        }
        rows = rows_of(key, self.engine.ask(ask).get("steps", []))
        try:
            # Now, and not when the file is read: a faulty engine is then still there.
            trace_of(marked(rows, self.about, ()), f"the runner's reply ({key})")
        except EvictProfileError as error:
            raise RunnerError(str(error)) from error
        return rows


def open_recording(
    engine: Runner, world: Path, plan: Plan, store: TraceStore
) -> Recording:
    """Open the world in the runner.

    Raises:
        ConfigError: the world cannot serve the plan.
    """
    options = {
        "depth": plan.depth,
        "fan": plan.fan,
        "nodes": plan.nodes,
        "prompt_tokens": plan.prompt_tokens,
        # A recording that goes on tells its clocks by the reference it began with.
        "reference_us": store.reference_us(),
    }
    ask = {"do": "open_world", "world": str(world.resolve()), "options": options}
    answer = engine.ask(ask).get("about", {})
    about = parse(About, answer, "the runner's answer to open_world")
    available: dict[str, int] = answer.get("workloads", {})
    if not available:
        raise RunnerError("the runner names no workloads; see docs/traces.md")
    return Recording(engine, plan.within(available), about, store)
