"""One sweep of a machine that is known, through the real engine, fit and export.

Made up are the runner's answers alone. What the table says of its own error is then
compared with the truth: on its staircases, at widths of eight and less, and at places
between the levels of the grid.
"""

import tempfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from rich.console import Console

from benchmarks.known_truths.worlds import (
    LAYERS,
    Machine,
    World,
    head_us,
    random_places,
)
from evict_profile.cells import Cell
from evict_profile.config import SweepSpec, load_model, load_sweep
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
from evict_profile.table import CostTable, MarginalCost

MODEL, SWEEP = load_model("qwen3-30b-a3b"), load_sweep("demo")
BANDWIDTH_GBPS = 24.0
PLACES = 250
SMALL_TOKENS = 8
FACTS = {
    "device": "known",
    "device_kind": "cpu",
    "layers": LAYERS,
    "dtype": "bfloat16",
    "tp": 1,
    "ep": 1,
    "engine": "known",
    "engine_version": "1",
    "attention_backend": "none",
    "moe_backend": "none",
    "graph_mode": "eager",
    "clock": "none",
}


@dataclass
class KnownRunner:
    """Answers as a runner does, from a machine that is a formula."""

    machine: Machine
    expected: int
    answered: int = 0

    def measure(
        self, cell: Cell, seeds: list[int], layers: int | None = None
    ) -> list[dict[str, Any]]:
        """One answer a seed."""
        return [self._answer(cell) for _ in seeds]

    def _answer(self, cell: Cell) -> dict[str, Any]:
        union = float(cell.union or MODEL.uniform_union(cell.tokens))
        done = min(self.answered / self.expected, 1.0)
        clock_us, reference_us = self.machine.sample_us(cell, union, done)
        self.answered += 1
        return {
            "clock_us": clock_us,
            "wall_us": clock_us,
            "reference_us": reference_us,
            "observed_width": cell.width,
            "observed_union": union,
            "union_low": int(union),
            "union_high": int(union),
            "tier": 0,
            "backend": "known",
            "at_unix": 0.3 * self.answered,
        }


@dataclass(frozen=True)
class Judged:
    """What one sweep said of itself, and what was true; shares and relative errors.

    Attributes:
        stairs, small, between: share of truths inside the interval on staircases, of
            those at no more than eight tokens, and between the grid's levels.
        half_width: median stated half-width of the staircases.
        needed: the half-width that would hold 95 % of this sweep's staircases.
        stairs_p90, between_median, between_p90: true errors.
        said_median, said_p90: the error that the table prints first.
        passed: whether every gate let it through.
        marginal: of what one more of something costs, by name: whether the truth is
            inside the interval, the stated half-width and the error over the truth.
    """

    stairs: float
    small: float
    between: float
    half_width: float
    needed: float
    stairs_p90: float
    between_median: float
    between_p90: float
    said_median: float
    said_p90: float
    passed: bool
    marginal: dict[str, tuple[bool, float, float]]


def judge(world: World, seed: int) -> Judged:
    """Sweep a world once and compare what is said with what is so."""
    machine = Machine(world.cost, world.disturbance, own_seed(world.name, seed))
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit_run(sweep(machine, Path(folder), sessions=world.sessions))
    table = make_table(fitted)
    inside, error, width, tokens = _stairs(table, machine)
    between, missed = _between(fitted, table, machine, seed)
    said = table.fit.validation or table.fit.held_out["hinge"]
    return Judged(
        stairs=float(inside.mean()),
        small=float(inside[tokens <= SMALL_TOKENS].mean()),
        between=float(between.mean()),
        half_width=float(np.median(width)),
        needed=float(np.percentile(error, 95)),
        stairs_p90=float(np.percentile(error, 90)),
        between_median=float(np.median(missed)),
        between_p90=float(np.percentile(missed, 90)),
        said_median=said.median,
        said_p90=said.p90,
        passed=all(gate.passed for gate in table.gates),
        marginal={m.name: _marginal(m, table, machine) for m in table.fit.marginal},
    )


def own_seed(name: str, seed: int) -> int:
    """Of a world: with the same draws, an unlucky sweep would count in all of them."""
    return zlib.crc32(f"{name}, {seed}".encode())


@cache
def demo_grid() -> Grid:
    """The cells of the demo's sweep."""
    return make_grid(SWEEP, MODEL)


def sweep(
    machine: Machine,
    folder: Path,
    grid: Grid | None = None,
    shard: str = "1/1",
    sessions: int | None = None,
) -> Store:
    """A finished run of the demo's sweep, or of the cells given."""
    spec = replace(SWEEP, sessions=sessions or SWEEP.sessions)
    grid = grid or demo_grid()
    expected = spec.stop.min_samples * len(grid.measured)
    runner = KnownRunner(machine, expected)
    store = Store(folder)
    store.create(_header(runner, spec, shard))
    session = SimpleNamespace(
        runner=runner, grid=grid, spec=spec, model=MODEL, restart=machine.reopen
    )
    with progress_bar(Console(quiet=True)) as display:
        plan = GridPlan(grid, spec.stop)
        Sweep(
            cast(Any, session),
            store,
            plan,
            CpuWatch(),
            display,
            Deadline(),
            shard,
        ).run()
    return store


def _header(runner: KnownRunner, spec: SweepSpec, shard: str) -> Header:
    opened = {
        "capture_sizes": [],
        "bandwidth_gbps": BANDWIDTH_GBPS,
        "bytes_per_expert": MODEL.bytes_per_expert,
    }
    test = run_union_test(cast(Runner, runner), demo_grid(), MODEL, opened, LAYERS)
    runner.answered = 0
    facts = {**FACTS, "model": MODEL.name}
    return Header(MODEL, spec, facts, opened, to_mapping(test), shard, 0.0)


def true_us(table: CostTable, machine: Machine, places: Floats) -> Floats:
    """The whole model's cost at tokens, union, context and batch, float64 [places]."""
    return table.fit.layer_scale * machine.cost(*places.T) + head_us(places[:, 0])


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


def _marginal(
    said: MarginalCost, table: CostTable, machine: Machine
) -> tuple[bool, float, float]:
    """Whether the truth is inside, the half-width, and the error, over the truth."""

    def cost(tokens: float, union: float, context: float, batch: float) -> Floats:
        place = np.array([[tokens, union, context, batch]])
        return true_us(table, machine, place)[0]

    truth, (low, high) = float(said.of(cost)), said.us_interval
    half, error = (high - low) / 2.0 / truth, abs(said.us / truth - 1.0)
    return low <= truth <= high, half, error


def _between(
    fitted: Fitted, table: CostTable, machine: Machine, seed: int
) -> tuple[Bools, Floats]:
    places = random_places(np.random.default_rng(seed), table.fit.domain, PLACES)
    truth = true_us(table, machine, places)
    cost, low, high = fitted.costs_at(*places.T)
    return (low <= truth) & (truth <= high), np.abs(cost / truth - 1.0)
