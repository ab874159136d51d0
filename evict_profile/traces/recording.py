"""Recordings with an engine of ours: pieces of one plan, each stored when it is there.

What a piece holds is up to the kind of recording; that Ctrl-C, a crash or a full disk
costs one piece at most, and that the same command goes on, is here.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import pyarrow as pa
from rich.console import Console

from evict_profile.errors import ConfigError, Interrupted, RunnerError
from evict_profile.io import check_outputs, say
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import parse
from evict_profile.signed import Facts
from evict_profile.sweep.client import Runner
from evict_profile.sweep.engine import Deadline
from evict_profile.sweep.run import interruptible
from evict_profile.traces.schema import Form
from evict_profile.traces.store import Planned, TraceStore
from evict_profile.traces.trace import About, Clock

RUNNER = "tree_decoding"
CLOCK_STEPS = 24


class Recordable(Planned, Protocol):
    """What a recording asks for, and the trees that it drafts."""

    @property
    def depth(self) -> int:
        """Levels of a tree."""

    @property
    def fan(self) -> int:
        """Nodes expanded a level."""

    @property
    def nodes(self) -> int:
        """Nodes verified."""

    @property
    def prompt_tokens(self) -> int:
        """Of each prompt."""

    @property
    def tokens(self) -> int:
        """Of each reply."""

    def within(self, available: Mapping[str, int], about: About) -> Self:
        """This plan on a world, which has so many prompts of each workload.

        Raises:
            ConfigError: the world cannot serve it.
        """


Plan = TypeVar("Plan", bound=Recordable)


@dataclass(frozen=True)
class State:
    """Where a recording stands, in pieces of one kind."""

    piece: str
    done: int
    left: int
    seconds_left: float
    kind: str = "replies"

    def __str__(self) -> str:
        return (
            f"{self.done} of {self.done + self.left} {self.kind} ({self.piece}), about "
            f"{self.seconds_left / 60.0:.1f} min left"
        )


class Pace:
    """How long pieces take."""

    def __init__(self, pieces: int, before: int, kind: str) -> None:
        """So many `pieces` are to be done, and so many were done before."""
        self.pieces, self.before, self.kind = pieces, before, kind
        self.done, self.start = 0, time.monotonic()

    def after(self, piece: str) -> State:
        """Where it stands when another piece is done."""
        self.done += 1
        left = self.pieces - self.done
        seconds_left = (time.monotonic() - self.start) / self.done * left
        return State(piece, self.before + self.done, left, seconds_left, self.kind)


@dataclass(frozen=True)
class Recording(ABC, Generic[Plan]):
    """A recording in progress."""

    form: ClassVar[Form]

    engine: Runner
    plan: Plan
    about: About
    store: TraceStore

    @abstractmethod
    def reply(self, key: Any) -> pa.Table:
        """Record one reply of the plan.

        Raises:
            RunnerError: the runner answered what no step can be.
        """

    def prepare(self) -> Iterator[State]:
        """What comes before the replies, one stored piece at a time."""
        yield from ()

    def notes(self) -> Facts:
        """What else the file's metadata tells."""
        return {}

    def run(self, deadline: Deadline, shown: ProgressBar) -> str:
        """Record what is missing; what the file then holds, in words.

        Clocks come first: they take seconds, and a batch size that the engine
        cannot run is then known before the replies.
        """
        left_over = self.store.left_over()
        if not self.store.begin(self.plan, self.about):
            return "recorded already"
        if self.store.continues():
            shown.say(f"continuing {self.store.folder}")
        elif left_over:
            shown.say(f"{self.store.folder}: held no reply yet, and is begun anew")
        for _ in self._work(shown):
            if deadline.reached():
                raise self._interrupted()
        steps = self.store.finish(self.plan, self.about, **self.notes())
        return f"{len(list(self.plan.replies()))} replies, {steps} steps"

    def _interrupted(self) -> Interrupted:
        if not self.store.continues():
            return Interrupted("interrupted before the first reply; nothing is kept")
        return Interrupted(
            f"interrupted; {self.store.folder} is kept, the same command continues it"
        )

    def _work(self, shown: ProgressBar) -> Iterator[None]:
        """One clock or one reply at a time, each stored before the next."""
        for batch in self.plan.batches:
            if not self.store.has_clock(batch):
                self.store.keep_clock(self._clock(batch))
                yield
        for state in chain(self.prepare(), self._replies()):
            shown.show(str(state), state.done, state.left)
            yield

    def _replies(self) -> Iterator[State]:
        replies = list(enumerate(self.plan.replies()))
        todo = [(i, key) for i, key in replies if not self.store.has_reply(i)]
        pace = Pace(len(todo), len(replies) - len(todo), "replies")
        for index, key in todo:
            self.store.keep_reply(index, self.reply(key))
            yield pace.after(str(key))

    def _clock(self, batch: int) -> Clock:
        ask = {"do": "clock", "batch": batch, "steps": CLOCK_STEPS}
        answer = {"batch": batch, **self.engine.ask(ask)}
        source = f"the runner's clock of batch {batch}"
        return parse(Clock, answer, source, extra_keys=True)


def carry_out(
    kind: type[Recording[Plan]],
    world: Path,
    out: Path,
    plan: Plan,
    console: Console,
    python: str | None = None,
    runner: str = RUNNER,
) -> None:
    """Record a plan into a file, or the rest of it.

    Raises:
        ConfigError: the world cannot serve the plan.
        StoreError: another recording is there, another process is at it, or the file
            would lie in the world.
        RunnerError: the runner cannot open the world, or answers what no step can be.
        Interrupted: by Ctrl-C; the replies up to then are stored.
    """
    if not world.is_dir():
        raise ConfigError(
            f"{world}: is no folder; give a small world, such as worlds/stdlib"
        )
    check_outputs([out], [world])
    store = TraceStore(out, kind.form)
    with (
        store.alone(),
        Runner(runner, python, store.log) as engine,
        progress_bar(console) as shown,
    ):
        opened, about = open_world(engine, world, plan, store)
        with interruptible(Deadline()) as deadline:
            done = kind(engine, opened, about, store).run(deadline, shown)
    say(console, f"{kind.form.noun}: {out} ({done})")


def open_world(
    engine: Runner, world: Path, plan: Plan, store: TraceStore
) -> tuple[Plan, About]:
    """Open the world in the runner: the plan as the world can serve it, and facts.

    Raises:
        ConfigError: the world cannot serve the plan.
        RunnerError: the runner names no workloads.
    """
    options = {
        "depth": plan.depth,
        "fan": plan.fan,
        "nodes": plan.nodes,
        "prompt_tokens": plan.prompt_tokens,
        "tokens": plan.tokens,
        "batches": plan.batches,
        "clock_steps": CLOCK_STEPS,
        # A recording that goes on tells its clocks by the reference it began with.
        "reference_us": store.reference_us(),
    }
    ask = {"do": "open_world", "world": str(world.resolve()), "options": options}
    answer = engine.ask(ask).get("about", {})
    about = parse(About, answer, "the runner's answer to open_world", extra_keys=True)
    available: dict[str, int] = answer.get("workloads", {})
    if not available:
        raise RunnerError("the runner names no workloads; see docs/reference/traces.md")
    return plan.within(available, about), about
