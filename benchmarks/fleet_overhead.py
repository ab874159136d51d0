"""What a fleet costs beside its sweeps, and how that grows with its pairs.

One sweep of a scripted runner is measured. Then that many pairs are planned, frozen and
handed to Ray, whose tasks send the rounds of that sweep and end at once: what is timed
is planning, scheduling, sending, storing on the disk and deciding, for each quarter of
the pairs. The memory is the driver's own (resident).

    python -m benchmarks.fleet_overhead tests/runners/scripted.py --pairs 200
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from rich.console import Console

from benchmarks.common import command, count
from evict_profile.config import GridSpec, StopSpec, SweepSpec, load_model
from evict_profile.deadline import Deadline
from evict_profile.errors import ConfigError
from evict_profile.fleet import cluster
from evict_profile.fleet.cluster import RayCluster, connected
from evict_profile.fleet.driver import Driver
from evict_profile.fleet.folder import Files, FleetFolder, Outcome
from evict_profile.fleet.plan import FleetPair, FleetPlan, make_pair
from evict_profile.fleet.spec import AXES, Budget, Device, EngineEnvironment
from evict_profile.fleet.task import Event, ShardRequest
from evict_profile.progress import progress_bar
from evict_profile.records import replace
from evict_profile.sweep.engine import Limits, run_sweep

SWEEP = SweepSpec(
    name="few",
    grid=GridSpec(width=(1, 2, 4, 8), union=4, context=(64,)),
    stop=StopSpec(relative_half_width=0.04, min_samples=6, max_samples=6),
)
QUARTERS = 4


class Clock:
    """A publisher that says what each quarter of the pairs took, and the memory."""

    busy = False

    def __init__(self, pairs: int) -> None:
        self._quarter, self._count = max(1, pairs // QUARTERS), 0
        self._since_s = time.monotonic()
        self._due: list[tuple[FleetPair, Outcome]] = []

    def publish(self, pair: FleetPair, measured_as: Outcome) -> None:
        """Take the time."""
        self._due.append((pair, replace(measured_as, state="published")))
        self._count += 1
        if self._count % self._quarter == 0:
            pace_s = (time.monotonic() - self._since_s) / self._quarter
            memory_mb = psutil.Process().memory_info().rss / 1e6
            print(f"to {self._count}: {pace_s:.3f} s a pair, {memory_mb:.0f} MB")
            self._since_s = time.monotonic()

    def ended(self) -> list[tuple[FleetPair, Outcome]]:
        """As a publisher does."""
        due, self._due = self._due, []
        return due


@command
def main(arguments: Sequence[str]) -> None:
    """Plan, measure once, hand out, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runner", type=Path)
    parser.add_argument("--pairs", type=count, default=200)
    given = parser.parse_args(arguments)
    if not given.runner.is_file():
        raise ConfigError(f"{given.runner}: no such file; give a runner's script")
    with TemporaryDirectory() as home:
        folder = FleetFolder(Path(home))
        start = time.monotonic()
        plan = plan_of(given.runner, given.pairs)
        folder.freeze(plan)
        print(f"{given.pairs} pairs planned in {time.monotonic() - start:.1f} s")
        hand_out(folder, plan, sweep_once(folder, plan.pairs[0]))


def plan_of(runner: Path, pairs: int) -> FleetPlan:
    """Pairs that differ by their seed."""
    engine, model = EngineEnvironment(str(runner.resolve())), load_model("tiny")
    device = Device(cpus=0.0, resources={"machine": 0.5})
    made = []
    for seed in range(pairs):
        sweep = replace(SWEEP, name=f"few-{seed}", seed=seed, runner=engine.runner)
        names = ("tiny", sweep.name, "bfloat16", "scripted", "cpu")
        axes = dict(zip(AXES, names, strict=True))
        made.append(make_pair(axes, model, sweep, engine, device, 1))
    return FleetPlan("many", "benchmark", tuple(made))


def sweep_once(folder: FleetFolder, pair: FleetPair) -> Files:
    """The files of a finished shard."""
    [job] = pair.jobs
    store, quiet = folder.store(job), Console(quiet=True)
    start = time.monotonic()
    run_sweep(pair.sweep, pair.model, store, Limits(), quiet)
    files = folder.files(job)
    for path in (*store.parts.glob("*"), store.header_path):
        path.unlink()
    kilobytes = sum(map(len, files.values())) / 1e3
    seconds = time.monotonic() - start
    print(f"its sweep: {len(files) - 1} rounds, {kilobytes:.0f} kB, {seconds:.1f} s")
    return files


def player_of(files: Files) -> Callable[[ShardRequest, Files], Iterator[Event]]:
    """A task that sends what was measured once, a round at a time."""

    def play(request: ShardRequest, had: Files) -> Iterator[Event]:
        yield Event("started")
        for name in sorted(files, reverse=True):
            yield Event("beat", files={name: files[name]})
        yield Event("ended")

    return play


def hand_out(folder: FleetFolder, plan: FleetPlan, files: Files) -> None:
    """Run all pairs."""
    cluster._measure = player_of(files)
    start = time.monotonic()
    with connected(None) as ray, progress_bar(Console(quiet=True)) as shown:
        print(f"Ray started in {time.monotonic() - start:.1f} s")
        clock = Clock(len(plan.pairs))
        driver = Driver(folder, Budget(), clock, shown, Deadline())  # type: ignore[arg-type]
        driver.begin(plan.pairs, [job for pair in plan.pairs for job in pair.jobs])
        driver.measure(RayCluster(ray))
        driver.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
