"""A small fleet of the scripted runner, and a cluster that plays what it is told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from evict_profile.deadline import Deadline
from evict_profile.fleet import driver as driver_module
from evict_profile.fleet.driver import Driver
from evict_profile.fleet.folder import FleetFolder, Outcome
from evict_profile.fleet.plan import FleetPair, ShardJob, make_plan
from evict_profile.fleet.spec import Budget, FleetSpec, load_fleet
from evict_profile.fleet.task import Event
from evict_profile.progress import progress_bar
from evict_profile.records import replace
from evict_profile.sweep.engine import Limits, run_sweep
from tests.sweep.conftest import SCRIPTED

SHORT = {
    "name": "short",
    "grid": {"width": [1, 2, 4, 8], "union": 4, "context": [64], "batch": [1, 2]},
    "stop": {"relative_half_width": 0.04, "min_samples": 6, "max_samples": 7},
}
FLEET = {
    "name": "few",
    "models": ["tiny"],
    "sweeps": ["short.yaml"],
    "dtypes": ["bfloat16"],
    "runners": {"scripted": {"runner": str(SCRIPTED)}},
    "devices": {"cpu": {}},
}

Making = Callable[..., FleetSpec]


@pytest.fixture
def fleet_of(tmp_path, monkeypatch):
    """Writes a fleet, or a variation of it, and reads it."""
    monkeypatch.chdir(tmp_path)
    Path("short.yaml").write_text(yaml.safe_dump(SHORT))

    def make(**changes):
        Path("fleet.yaml").write_text(yaml.safe_dump({**FLEET, **changes}))
        return load_fleet(Path("fleet.yaml"))

    return make


@pytest.fixture
def plan(fleet_of):
    """One pair in two shards."""
    return make_plan(fleet_of(shards=2))


@pytest.fixture
def folder(tmp_path, plan):
    """Where `plan` is frozen."""
    made = FleetFolder(tmp_path / "fleet")
    made.freeze(plan)
    return made


def measure_here(job, store):
    """Measure a shard in this process, to its end."""
    pair, quiet = job.pair, Console(quiet=True)
    run_sweep(pair.sweep, pair.model, store, Limits(shard=job.shard), quiet)


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """Files of both shards of `plan`, by shard."""
    home = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        Path("short.yaml").write_text(yaml.safe_dump(SHORT))
        Path("fleet.yaml").write_text(yaml.safe_dump({**FLEET, "shards": 2}))
        [pair] = make_plan(load_fleet(Path("fleet.yaml"))).pairs
    whole = FleetFolder(home / "fleet")
    for job in pair.jobs:
        measure_here(job, whole.store(job))
    return {job.shard: whole.files(job) for job in pair.jobs}


Script = Mapping[str, Sequence[Sequence[Event | None]]]
"""Of each try of each shard, what is said; None where a moment passes."""


class Played:
    """A cluster on which each try of a shard says what a script holds for it.

    Attributes:
        script: events of one try after the other, by shard; a shard whose script has
            ended says nothing.
        avoided: nodes that each try was to avoid.
        stopped: shards that were ended.
    """

    def __init__(self, script):
        self.script = {shard: list(tries) for shard, tries in script.items()}
        self.avoided: list[list[str]] = []
        self.sent: list[Mapping[str, bytes]] = []
        self.minutes: list[float] = []
        self.stopped: list[str] = []
        self.nodes = ["a", "b"]
        self._playing: dict[str, tuple[ShardJob, Iterator[Event | None]]] = {}

    def start(self, job, request, files, avoid):
        self.avoided.append(list(avoid))
        self.sent.append(files)
        self.minutes.append(request.minutes)
        tries = self.script.get(job.shard, [])
        self._playing[job.name] = (job, iter(tries.pop(0) if tries else ()))

    def events(self, wait_s):
        heard = [(job, next(play, None)) for job, play in self._playing.values()]
        return [(job, event) for job, event in heard if event]

    def stop(self, job):
        self.stopped.append(job.shard)
        del self._playing[job.name]

    def homes(self, job):
        return self.nodes

    def offers(self):
        return "nodes offer CPU 2"


class Noted:
    """A publisher that publishes whatever it is given."""

    busy = False

    def __init__(self):
        self.pairs: list[FleetPair] = []
        self._due: list[tuple[FleetPair, Outcome]] = []

    def publish(self, pair, measured_as):
        self.pairs.append(pair)
        done = replace(measured_as, state="published", table="table.json")
        self._due.append((pair, done))

    def ended(self):
        due, self._due = self._due, []
        return due


Driving = Callable[..., tuple[Played, Noted]]


@pytest.fixture
def drive(folder, plan, monkeypatch):
    """Drives `plan` on a played cluster, until all has ended."""
    monkeypatch.setattr(driver_module, "HOME_EVERY_S", 0.0)

    def run(script, nodes=("a", "b"), deadline=None, **budget):
        cluster, publisher = Played(script), Noted()
        cluster.nodes = list(nodes)
        [pair] = plan.pairs
        left = [job for job in pair.jobs if not folder.finished(job)]
        with progress_bar(Console(quiet=True)) as shown:
            limits = Budget(**budget)  # type: ignore[arg-type]
            ends = deadline or Deadline()
            driver = Driver(folder, limits, publisher, shown, ends)  # type: ignore[arg-type]
            driver.begin([pair], left)
            driver.measure(cluster)
            driver.finish()
        return cluster, publisher

    return run
