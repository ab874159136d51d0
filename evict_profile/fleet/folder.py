"""The folder of a fleet: its plan, the run of each shard, and what became of each pair.

    FLEET/fleet.json               the frozen plan
    FLEET/commands.txt             a command line a shard, for who runs without Ray
    FLEET/outcomes.json            what became of each pair
    FLEET/atlas.html               all pairs side by side
    FLEET/pairs/PAIR/model.json, asked.json
    FLEET/pairs/PAIR/1-of-1/       the run folder of a shard; `sweep.store` says what
                                   is in it
    FLEET/lock                     held by the driver

Samples decide what is done: the same runs may as well come from `sweep --shard`.
"""

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from evict_profile.errors import StoreError
from evict_profile.fleet.plan import FleetPair, FleetPlan, ShardJob
from evict_profile.io import write_atomically, write_json, write_text
from evict_profile.records import digest, parse, to_mapping
from evict_profile.run_folder import RunFolder
from evict_profile.sweep.engine import is_finished
from evict_profile.sweep.store import Store

Files = Mapping[str, bytes]
"""Files of a run folder by their path in it."""

MAX_NAMED = 4


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


class Outcome(Struct, frozen=True):
    """What became of a pair.

    Attributes:
        state: "refused" where its gates did, and "failed" where it was not measured.
        table: path of the table that was published.
        tries: of all its shards, in the last run of the fleet that measured it.
        nodes: that measured it.
    """

    state: Literal["published", "refused", "failed"]
    why: str = ""
    table: str = ""
    tries: int = 0
    nodes: tuple[str, ...] = ()


class FleetFolder(RunFolder):
    """The folder of a fleet."""

    header_name = "fleet.json"
    noun = "sweeps"

    def freeze(self, plan: FleetPlan) -> None:
        """Write the plan and what runs it by hand, or check the stored one."""
        if not self.exists():
            for pair in plan.pairs:
                home = self.pair(pair)
                write_json(to_mapping(pair.model), home / "model.json")
                write_json(to_mapping(pair.sweep), home / "asked.json")
            lines = [self.command(job) for pair in plan.pairs for job in pair.jobs]
            write_text("\n".join(lines) + "\n", self.folder / "commands.txt")
            # Last, so that a plan is there whole or not at all.
            self.write_header({**to_mapping(plan), "sha256": plan.sha256})
            return
        changes = plan.changes(self.plan())
        if changes:
            more = len(changes) - MAX_NAMED
            rest = [f"and {more} more"] if more > 0 else []
            raise StoreError(
                f"{self.folder}: its plan is frozen, and another is asked for "
                f"({'; '.join(changes[:MAX_NAMED] + rest)}); put that back, or choose "
                "another --out"
            )

    def plan(self) -> FleetPlan:
        """The frozen plan."""
        if not self.exists():
            raise StoreError(
                f"{self.folder}: holds no fleet; begin one with 'evict-profile fleet "
                "FLEET.yaml'"
            )
        content = self.read_header()
        sha256 = content.pop("sha256", "")
        if digest(content) != sha256:
            raise StoreError(
                f"{self.header_path}: was edited (its sha256 differs); put the whole "
                "file back, or choose another --out"
            )
        return parse(FleetPlan, content, str(self.header_path))

    def pair(self, pair: FleetPair) -> Path:
        """The folder of a pair."""
        return self.folder / "pairs" / pair.name

    def store(self, job: ShardJob) -> Store:
        """The run folder of a shard."""
        return Store(self.pair(job.pair) / job.shard.replace("/", "-of-"))

    def files(self, job: ShardJob) -> dict[str, bytes]:
        """What a task needs to continue a shard."""
        run = self.store(job)
        notes = (run.header_path, run.folder / "clocks.json")
        paths = [*notes, *sorted(run.parts.glob("*.parquet"))]
        return {
            str(path.relative_to(run.folder)): path.read_bytes()
            for path in paths
            if path.is_file()
        }

    def keep(self, job: ShardJob, files: Files) -> None:
        """Store what a task sent."""
        home = self.store(job).folder.resolve()
        for name, content in files.items():
            path = (home / name).resolve()
            if not path.is_relative_to(home):
                raise StoreError(f"{name}: a task sent a file that is not of its run")
            write_atomically(path, partial(_write, content))

    def finished(self, job: ShardJob, clocks: bool = True) -> bool:
        """Whether a shard has all its samples and, where they are due, its clocks."""
        run = self.store(job)
        if not is_finished(run):
            return False
        return not (clocks and run.header().opened.get("clocks")) or bool(run.clocks())

    def command(self, job: ShardJob) -> str:
        """The command line that measures a shard without Ray."""
        home, engine = self.pair(job.pair), job.pair.engine
        words = ["env", *(f"{k}={v}" for k, v in engine.env.items())]
        words = words if engine.env else []
        words += ["evict-profile", "sweep", "--model", str(home / "model.json")]
        words += ["--sweep", str(home / "asked.json"), "--shard", job.shard]
        words += ["--out", str(self.store(job).folder)]
        return shlex.join(
            [*words, *(["--python", engine.python] * bool(engine.python))]
        )

    def outcomes(self) -> dict[str, Outcome]:
        """What became of each pair that ended, by its name."""
        source = str(self.folder / "outcomes.json")
        noted: dict[str, Any] = self.note("outcomes") or {}
        return {name: parse(Outcome, each, source) for name, each in noted.items()}

    def is_published(self, pair: FleetPair) -> bool:
        """Whether the table of a pair is there."""
        outcome = self.outcomes().get(pair.name)
        return bool(outcome and outcome.table and Path(outcome.table).is_file())

    def end(self, pair: FleetPair, outcome: Outcome) -> None:
        """Note what became of a pair."""
        noted = self.note("outcomes") or {}
        self.add_note("outcomes", {**noted, pair.name: to_mapping(outcome)})
