"""Does a table's interval hold the true cost? Real sweeps of known machines.

Only the runner's answers are generated. What the table says of its own error is
compared with the truth on its staircases, at widths of eight and less, and at places
between the levels of the grid.
"""

import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.known_truths.worlds import (
    LAYERS,
    TOP_K,
    WORLDS,
    Machine,
    Place,
    World,
    head_us,
)
from evict_profile.cells import Cell, Reading
from evict_profile.config import load_model, load_sweep
from evict_profile.deadline import Deadline
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted, fit_run
from evict_profile.progress import progress_bar
from evict_profile.records import replace, to_mapping
from evict_profile.runner import Runner
from evict_profile.stats import Bools, Floats
from evict_profile.sweep.checks import run_union_test
from evict_profile.sweep.engine import Sweep
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.machine import CpuWatch
from evict_profile.sweep.plan import GridPlan
from evict_profile.sweep.store import Header, Store
from evict_profile.table import CostTable

LEAST_INSIDE, MOST_TOO_WIDE = 0.94, 2.0
"""Of truths at the levels, on machines of the fitted class; and half-widths over those
needed, in the median machine."""

KNOWN = WORLDS
MODEL = load_model("qwen3-30b-a3b")
SWEEP = load_sweep(str(Path(__file__).with_name("sweep.yaml")))
BANDWIDTH_GBPS = 24.0
PLACES = 250
SMALL_TOKENS = 8
FACTS = {"device": "known", "device_kind": "cpu", "layers": LAYERS}
FACTS |= {"dtype": "bfloat16", "tp": 1, "ep": 1, "engine": "known"}
FACTS |= {"engine_version": "1", "graph_mode": "eager", "clock": "none"}
FACTS |= {"attention_backend": "none", "moe_backend": "none"}


def judged(world: World, seed: int) -> Iterator[dict[str, Any]]:
    """Sweep a world once; compare what its table says with what is so.

    `stairs`, `small` and `between` are shares of truths inside their interval, widths
    and errors are shares of the cost: `half_width` as stated in the median, `needed`
    what would have held 95 % of the staircases, `said` what the table prints first.
    """
    machine = Machine(world.cost, world.disturbance, own_seed(world.name, seed))
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit_run(sweep(machine, Path(folder), world.sessions))
    table = make_table(fitted)
    inside, error, width, tokens = _stairs(table, machine)
    between, missed = _between(fitted, table, machine, seed)
    said = table.fit.validation or table.fit.held_out["hinge"]
    yield {
        "apart": world.apart,
        "in_class": world.in_class,
        "stairs": float(inside.mean()),
        "small": float(inside[tokens <= SMALL_TOKENS].mean()),
        "between": float(between.mean()),
        "half_width": float(np.median(width)),
        "needed": float(np.percentile(error, 95)),
        "stairs_p90": float(np.percentile(error, 90)),
        "between_median": float(np.median(missed)),
        "between_p90": float(np.percentile(missed, 90)),
        "said_median": said.median,
        "said_p90": said.p90,
        "passed": all(gate.passed for gate in table.gates),
    }


def own_seed(name: str, seed: int) -> int:
    """Of a world: with the same draws, an unlucky sweep would count in all of them."""
    return zlib.crc32(f"{name}, {seed}".encode())


@cache
def demo_grid() -> Grid:
    """The cells of the sweep."""
    return make_grid(SWEEP, MODEL)


@dataclass
class KnownRunner:
    """Answers as a runner does, from a machine that is a formula."""

    machine: Machine
    expected: int
    answered: int = 0
    begun: float = field(default_factory=time.time)

    def measure(
        self, cell: Cell, seeds: list[int], layers: int | None = None
    ) -> list[Reading]:
        """One answer a seed."""
        return [self._answer(cell) for _ in seeds]

    def _answer(self, cell: Cell) -> Reading:
        union = float(cell.union or MODEL.uniform_union(cell.tokens))
        done = min(self.answered / self.expected, 1.0)
        clock_us, reference_us = self.machine.sample_us(cell, union, done)
        self.answered += 1
        at_unix = self.begun + 0.3 * self.answered
        low = high = int(union)
        return Reading(clock_us, reference_us, cell.width, union, low, high, at_unix)


def sweep(machine: Machine, folder: Path, sessions: int | None = None) -> Store:
    """A finished run of the sweep."""
    spec, grid = replace(SWEEP, sessions=sessions or SWEEP.sessions), demo_grid()
    runner = KnownRunner(machine, spec.stop.min_samples * len(grid.measured))
    opened = {
        "capture_sizes": [],
        "bandwidth_gbps": BANDWIDTH_GBPS,
        "bytes_per_expert": MODEL.bytes_per_expert,
    }
    test = run_union_test(cast(Runner, runner), grid, MODEL, opened, LAYERS)
    runner.answered = 0
    store, facts = Store(folder), {**FACTS, "model": MODEL.name}
    store.create(Header(MODEL, spec, facts, opened, to_mapping(test), 0.0))
    session = SimpleNamespace(
        runner=runner, grid=grid, spec=spec, model=MODEL, restart=machine.reopen
    )
    with progress_bar(Console(quiet=True)) as display:
        plan, watch = GridPlan(grid, spec.stop), CpuWatch()
        run = Sweep(cast(Any, session), store, plan, watch, display, Deadline(), "1/1")
        run.run()
    return store


def random_places(
    rng: np.random.Generator, limits: dict[str, tuple[int, int]], count: int
) -> Floats:
    """Tokens, union, context and batch inside a domain, float64 [count, 4].

    Levels are drawn by ratio, as a grid spreads them, and no union exceeds what the
    tokens can activate.
    """
    places = []
    while len(places) < count:
        width, union, context, batch = (
            round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
            for low, high in (limits[a] for a in ("width", "union", "context", "batch"))
        )
        tokens = width * batch
        if union <= tokens * TOP_K and tokens <= limits["tokens"][1]:
            places.append((tokens, union, context, batch))
    return np.array(places, dtype=np.float64)


def true_us(table: CostTable, machine: Machine, places: Floats) -> Floats:
    """The whole model's cost at tokens, union, context and batch, float64 [places]."""
    layers = machine.cost(Place(*places.T))
    return table.fit.layer_scale * layers + head_us(places[:, 0])


def _stairs(table: CostTable, machine: Machine) -> tuple[Bools, Floats, Floats, Floats]:
    """Whether each truth is inside, the error, the half-width, and the tokens."""
    rows = []
    for stairs in table.staircases:
        tokens = np.arange(stairs.batch, len(stairs.step_cost_us), dtype=np.float64)
        union = table.activation.at(tokens, stairs.batch)
        where = np.full((2, len(tokens)), [[stairs.context], [stairs.batch]])
        truth = true_us(table, machine, np.stack([tokens, union, *where], axis=1))
        cost = [bound[stairs.batch :] for bound in stairs.costs[:3]]
        rows.append(np.stack([*cost, truth, tokens]))
    cost, low, high, truth, tokens = np.concatenate(rows, axis=1)
    inside = (low <= truth) & (truth <= high)
    return inside, np.abs(cost / truth - 1.0), (high - low) / 2.0 / cost, tokens


def _between(
    fitted: Fitted, table: CostTable, machine: Machine, seed: int
) -> tuple[Bools, Floats]:
    places = random_places(np.random.default_rng(seed), table.fit.domain, PLACES)
    truth = true_us(table, machine, places)
    cost, low, high = fitted.costs_at(*places.T)
    return (low <= truth) & (truth <= high), np.abs(cost / truth - 1.0)


def misses(rows: pd.DataFrame) -> Iterator[str]:
    """Promises of intervals that are not met."""
    inside = rows.loc[rows["in_class"], "stairs"].mean()
    if inside < LEAST_INSIDE:
        yield f"{inside:.1%} of truths of the fitted class are inside"
    worlds = rows.groupby("world")[["half_width", "needed"]].mean()
    wide = (worlds["half_width"] / worlds["needed"]).median()
    if wide > MOST_TOO_WIDE:
        yield f"half-widths are {wide:.1f} times those needed"


def show(rows: pd.DataFrame) -> None:
    """A line a world, in %."""
    costs = {}
    for (name, apart), own in rows.groupby(["world", "apart"], sort=False):
        mean = 100.0 * own.mean(numeric_only=True)
        costs[name + " (apart)" * apart] = {
            **{part: _share(own[part]) for part in ("stairs", "small", "between")},
            "half-width": f"{mean.half_width:.2f}",
            "needed": f"{mean.needed:.2f}",
            "stairs p90": f"{mean.stairs_p90:.2f}",
            "true med / p90": f"{mean.between_median:.2f} / {mean.between_p90:.2f}",
            "printed med / p90": f"{mean.said_median:.2f} / {mean.said_p90:.2f}",
            "exported": f"{100.0 * own['passed'].mean():.0f}",
        }
    print(pd.DataFrame.from_dict(costs, orient="index").to_string())


def _share(values: pd.Series) -> str:
    return f"{100.0 * values.mean():.0f} +- {100.0 * values.sem():.0f}"
