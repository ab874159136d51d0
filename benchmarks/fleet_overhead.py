"""What a fleet costs beside its sweeps, and how that grows with its pairs.

Many pairs of a scripted runner, whose sweeps take seconds, are measured through Ray by
the driver; nothing is fitted. Overhead of a pair is wall time less that of the same
sweep as a plain command, both with so many at a time. Memory is the driver's own
(resident), which holds a generator a shard and no samples.

    python -m benchmarks.fleet_overhead tests/runners/scripted.py --pairs 200
"""

import argparse
import shlex
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
from rich.console import Console

from evict_profile.config import GridSpec, StopSpec, SweepSpec, load_model
from evict_profile.deadline import Deadline
from evict_profile.fleet.cluster import RayCluster, connected
from evict_profile.fleet.driver import Driver
from evict_profile.fleet.folder import FleetFolder, Outcome
from evict_profile.fleet.plan import Pair, Plan, make_pair
from evict_profile.fleet.spec import AXES, Budget, Device, Engine
from evict_profile.progress import progress_bar
from evict_profile.records import replace

SWEEP = SweepSpec(
    name="few",
    grid=GridSpec(width=(1, 2, 4, 8), union=4, context=(64,), natural=False),
    stop=StopSpec(relative_half_width=0.04, min_samples=6, max_samples=6),
)
QUARTERS = 4


class Clock:
    """A publisher that notes when each pair was whole, and the driver's memory."""

    busy = False

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.memory_mb: list[float] = []
        self._due: list[tuple[Pair, Outcome]] = []

    def publish(self, pair: Pair, measured_as: Outcome) -> None:
        """Take the time."""
        self.at_s.append(time.monotonic())
        self.memory_mb.append(psutil.Process().memory_info().rss / 1e6)
        self._due.append((pair, measured_as))

    def ended(self) -> list[tuple[Pair, Outcome]]:
        """As a publisher does."""
        due, self._due = self._due, []
        return due


def main() -> None:
    """Plan, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runner", type=Path)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--plain", type=int, default=12, help="Plain sweeps to time.")
    given = parser.parse_args()
    with TemporaryDirectory() as home:
        folder = FleetFolder(Path(home) / "fleet")
        start = time.monotonic()
        plan = plan_of(given.runner, given.pairs, given.at_once)
        folder.freeze(plan)
        print(f"{given.pairs} pairs planned and frozen in {_since(start):.1f} s")
        plain_s = time_plain(folder, plan, given.plain)
        median_s = np.median(plain_s)
        print(f"a plain sweep alone: median {median_s:.2f} s, {_range(plain_s)}")
        clock, begun, running = time_fleet(folder, plan)
    report(clock, begun, running)


def plan_of(runner: Path, pairs: int, at_once: int) -> Plan:
    """Pairs that differ by their seed."""
    engine = Engine(str(runner.resolve()))
    device = Device(cpus=0.0, resources={"machine": 1.0 / at_once})
    model = load_model("tiny")
    made = []
    for seed in range(pairs):
        sweep = replace(SWEEP, name=f"few-{seed}", seed=seed, runner=engine.runner)
        names = dict(
            zip(AXES, ("tiny", sweep.name, "bfloat16", "scripted", "cpu"), strict=True)
        )
        made.append(make_pair(names, model, sweep, engine, device, 1))
    return Plan("many", "benchmark", tuple(made))


def time_plain(folder: FleetFolder, plan: Plan, count: int) -> list[float]:
    """Seconds of sweeps as plain commands, one after the other, into other folders."""
    seconds = []
    for number, pair in enumerate(plan.pairs[:count]):
        words = shlex.split(folder.command(pair.jobs[0]))[1:]
        words[words.index("--out") + 1] = str(folder.folder / f"plain-{number}")
        start = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "evict_profile", *words],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        seconds.append(_since(start))
    return seconds


def time_fleet(folder: FleetFolder, plan: Plan) -> tuple[Clock, float, float]:
    """Run it; the clock, when Ray began to start, and when it had."""
    clock, begun = Clock(), time.monotonic()
    with connected(None) as ray, progress_bar(Console()) as shown:
        running = time.monotonic()
        driver = Driver(folder, Budget(), clock, shown, Deadline())  # type: ignore[arg-type]
        driver.begin(plan.pairs, [job for pair in plan.pairs for job in pair.jobs])
        driver.measure(RayCluster(ray))
        driver.finish()
    return clock, begun, running


def report(clock: Clock, begun: float, running: float) -> None:
    """By quarters, so that growth shows."""
    print(f"Ray started in {running - begun:.1f} s")
    at_s = np.array([running, *clock.at_s])
    ends = np.linspace(0, len(at_s) - 1, QUARTERS + 1).astype(int)
    for first, last in pairwise(ends):
        pace_s = (at_s[last] - at_s[first]) / (last - first)
        print(
            f"pairs {first + 1}..{last}: {pace_s:.2f} s a pair, driver "
            f"{clock.memory_mb[last - 1]:.0f} MB"
        )


def _since(start: float) -> float:
    return time.monotonic() - start


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f} over {len(seconds)}"


if __name__ == "__main__":
    main()
