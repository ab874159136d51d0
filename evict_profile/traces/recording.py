"""Recordings with an engine of ours: replies of a plan, each stored when it is there.

What a reply holds is up to the kind of recording; that Ctrl-C, a crash or a full disk
costs one reply at most, and that the same command continues, is here.
"""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa
from rich.console import Console

from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import (
    ConfigError,
    Interrupted,
    RunnerError,
    TraceError,
)
from evict_profile.io import check_outputs, check_writable, make_folder, say
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import Facts, parse, to_mapping
from evict_profile.run_folder import RunFolder, write_table
from evict_profile.runner import CLOCK_STEPS, Message, Runner
from evict_profile.table import DraftClock
from evict_profile.traces.schema import FileFormat, in_todays_words
from evict_profile.traces.trace import About

RUNNER = "tree_decoding"


@dataclass(frozen=True, kw_only=True)
class RecordingPlan(ABC):
    """What a recording asks for.

    Attributes:
        prompts: of each workload.
        tokens: of each reply.
        workloads: all that the checkpoint has text of, if empty.
        depth, topk, nodes: levels of a tree, nodes expanded a level, nodes verified.
        batches: batch sizes whose whole steps are timed.
        prompt_tokens: of each prompt.
    """

    counts: ClassVar[tuple[str, ...]] = ("prompts", "tokens", "depth", "topk", "nodes")
    """Options that must be at least 1."""

    prompts: int
    tokens: int = 64
    workloads: tuple[str, ...] = ()
    depth: int = 5
    topk: int = 8
    nodes: int = 60
    batches: tuple[int, ...] = (1,)
    prompt_tokens: int = 128

    def __post_init__(self) -> None:
        for name in self.counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: must be at least 1")
        for each in fields(self):
            values = getattr(self, each.name)
            if isinstance(values, tuple) and len(set(values)) < len(values):
                option = "batch" if each.name == "batches" else each.name[:-1]
                raise ConfigError(f"--{option} has a value twice; give each once")

    @abstractmethod
    def replies(self) -> Iterator[Any]:
        """What is recorded, in order."""

    def within(self, available: Mapping[str, int], about: About) -> Self:
        """This plan on a checkpoint, which has so many prompts of each workload."""
        for workload in self.workloads or available:
            if workload not in available:
                raise ConfigError(
                    f"--workload {workload}: {about.model} has {', '.join(available)}"
                )
            self.check_prompts(workload, available[workload], about)
        return replace(self, workloads=self.workloads or tuple(available))

    def check_prompts(self, workload: str, available: int, about: About) -> None:
        """Check that there are prompts enough of a workload."""
        if available < self.prompts:
            raise ConfigError(
                f"--prompts {self.prompts}: workload {workload} of {about.model} "
                f"has {available}; give as many at most"
            )

    def facts(self, about: About) -> Facts:
        """What two recordings must share to be one, as JSON gives it back."""
        facts: Facts = json.loads(json.dumps({**to_mapping(about), **to_mapping(self)}))
        return facts


class RecordingFolder(RunFolder):
    """The file of a recording, and the folder of its parts.

        FILE.parts/plan.json         what is recorded, on what
        FILE.parts/00012.parquet     the plan's reply 12
        FILE.parts/clock-4.json      times of whole steps at batch 4
        FILE.parts/mass.json         other notes
        FILE                         all of it; the parts are then deleted
        FILE.log                     what the engine printed

    Clocks take seconds: a folder that holds nothing else is begun anew, whatever the
    plan.
    """

    header_name = "plan.json"
    noun = "replies"

    def __init__(self, file: Path, form: FileFormat) -> None:
        """Check that the file can be written; `form` is its format."""
        check_writable(file)
        make_folder(file.parent)
        super().__init__(file.with_name(f"{file.name}.parts"), out=file)
        self.file, self.form = file, form
        self.log = file.with_name(f"{file.name}.log")
        self._finished = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others out; at the end, keep no parts but those of a reply to come."""
        with self.locked():
            try:
                yield
            finally:
                if self._finished or not self.continues():
                    shutil.rmtree(self.folder)

    def begin(self, facts: Facts) -> bool:
        """Start or continue a recording of these facts; False where it is finished."""
        stored = self.stored()
        if stored is None:
            for path in self._clocks():
                path.unlink()
            self.write_header(facts)
        else:
            self.check_same(facts, stored)
        self._finished = self.file.exists()
        return not self._finished

    def stored(self) -> Facts | None:
        """The facts of the recording that is there; None where there is none."""
        if self.file.exists():
            return self._recorded()
        if self.continues():
            self.check_no_orphans()
            return in_todays_words(self.read_header())
        return None

    def continues(self) -> bool:
        """Whether some of it is recorded that took longer than clocks."""
        notes = {*self.folder.glob("*.json")} - {self.header_path, *self._clocks()}
        return bool(notes) or any(self.parts.glob("*.parquet"))

    def finish(self, table: pa.Table) -> None:
        """Store the whole recording as the one file."""
        write_table(table, self.file)
        self._finished = True

    def _recorded(self) -> Facts:
        """What the finished recording says it is a recording of."""
        try:
            schema = self.form.read(self.file).schema
            facts: Facts = self.form.metadata(schema, str(self.file))["recorded"]
        except (TraceError, KeyError) as error:
            raise TraceError(
                f"{self.file}: is there already, and no {self.form.noun} that "
                f"'{self.form.command}' recorded; choose another --out"
            ) from error
        return facts

    def _clocks(self) -> Iterator[Path]:
        return self.folder.glob("clock-*.json")


Plan = TypeVar("Plan", bound=RecordingPlan)


class Recording(ABC, Generic[Plan]):
    """A recording in progress."""

    form: ClassVar[FileFormat]

    def __init__(
        self, engine: Runner, plan: Plan, about: About, folder: RecordingFolder
    ) -> None:
        self.engine, self.plan, self.about, self.folder = engine, plan, about, folder

    @abstractmethod
    def reply(self, key: Any) -> pa.Table:
        """Record one reply of the plan."""

    def notes(self) -> Mapping[str, Callable[[], Facts]]:
        """What is asked before the replies, by the name it is kept under.

        Clocks come first: they take seconds, and a batch size that the engine cannot
        run is then known before the replies.
        """
        return {f"clock-{b}": partial(self._clock, b) for b in self.plan.batches}

    def metadata(self) -> Facts:
        """What else the file's metadata tells."""
        return {}

    def run(self, deadline: Deadline, shown: ProgressBar) -> str:
        """Record what is missing; what the file then holds, in words."""
        if not self.folder.begin(self.plan.facts(self.about)):
            return "recorded already"
        if self.folder.continues():
            shown.say(f"continuing {self.folder.folder}")
        for _ in self._work(shown):
            if deadline.reached():
                raise self._interrupted()
        return self.finish()

    def _work(self, shown: ProgressBar) -> Iterator[None]:
        """One answer or one reply at a time, each stored before the next."""
        notes = self.notes()
        missing = [name for name in notes if self.folder.note(name) is None]
        for name in shown.track("preparations", missing, len(notes)):
            self.folder.add_note(name, notes[name]())
            yield
        replies = {key: f"{i:05d}" for i, key in enumerate(self.plan.replies())}
        todo = [k for k, name in replies.items() if not self.folder.part(name).exists()]
        for key in shown.track("replies", todo, len(replies)):
            self.folder.add_part(replies[key], self.reply(key))
            yield

    def _clock(self, batch: int) -> Facts:
        return to_mapping(self.engine.clock(batch))

    def finish(self) -> str:
        """Put all parts into the file; what it holds, in words."""
        folder, count = self.folder, len(list(self.plan.replies()))
        rows = pa.concat_tables(folder.read_parts([f"{i:05d}" for i in range(count)]))
        notes = [folder.note(f"clock-{batch}") for batch in self.plan.batches]
        clocks = tuple(parse(DraftClock, note, str(folder.folder)) for note in notes)
        facts = self.plan.facts(self.about)
        folder.finish(
            self.form.mark(rows, self.about, clocks, recorded=facts, **self.metadata())
        )
        return f"{count} replies, {len(rows)} steps"

    def _interrupted(self) -> Interrupted:
        if not self.folder.continues():
            return Interrupted("interrupted before the first reply; nothing is kept")
        return Interrupted(
            f"interrupted; {self.folder.folder} is kept, the same command continues it"
        )


def carry_out(
    kind: type[Recording[Plan]],
    world: Path,
    out: Path,
    plan: Plan,
    console: Console,
    python: str | None = None,
    runner: str = RUNNER,
) -> None:
    """Record a plan into a file, or the rest of it."""
    if not world.is_dir():
        raise ConfigError(
            f"{world}: is no folder; give a small world, such as worlds/stdlib"
        )
    check_outputs([out], [world])
    folder = RecordingFolder(out, kind.form)
    with (
        folder.alone(),
        Runner(runner, python, folder.log) as engine,
        progress_bar(console) as shown,
    ):
        # A recording that continues tells its clocks by the reference it began with.
        reference_us = float((folder.stored() or {}).get("reference_us", 0.0))
        served, about = open_world(engine, world, plan, reference_us)
        with interruptible(Deadline()) as deadline:
            done = kind(engine, served, about, folder).run(deadline, shown)
    say(console, f"{kind.form.noun}: {out} ({done})")


def open_world(
    engine: Runner, world: Path, plan: Plan, reference_us: float
) -> tuple[Plan, About]:
    """Open the world in the runner: the plan as the world can serve it, and facts.

    `reference_us` is the reference by which clocks are told; 0 lets the runner measure.
    """
    names = ("depth", "topk", "nodes", "prompt_tokens", "tokens", "batches")
    options = {
        **{name: getattr(plan, name) for name in names},
        "clock_steps": CLOCK_STEPS,
        "reference_us": reference_us,
    }
    ask = {"do": "open_world", "world": str(world.resolve()), "options": options}
    answer = engine.ask(ask).get("about", {})
    about = parse(About, answer, "the runner's answer to open_world", extra_keys=True)
    available: dict[str, int] = answer.get("workloads", {})
    if not available:
        raise RunnerError("the runner names no workloads; see docs/reference/traces.md")
    return plan.within(available, about), about


def rows_of(
    key: Any,
    steps: list[Message],
    schema: pa.Schema,
    page: str,
    decode: Callable[[Message], Message] = dict,
) -> pa.Table:
    """A runner's steps of one reply, one row a step; `decode` turns a step into one."""
    named = to_mapping(key)
    needed = [name for name in schema.names if name not in named]
    try:
        rows = [
            {**named, **decode({name: step[name] for name in needed})} for step in steps
        ]
        return pa.Table.from_pylist(rows, schema=schema)
    except KeyError as error:
        raise RunnerError(
            f"the runner answered a step without {error.args[0]}; a step needs "
            f"{', '.join(needed)}"
        ) from error
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise RunnerError(
            f"the runner answered a step that is none ({error}); see {page}"
        ) from error
