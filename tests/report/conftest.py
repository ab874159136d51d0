"""A small run with known costs, as a sweep would have left it on disk."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from evict_profile.cells import Cell, Sample
from evict_profile.config.model import AttentionSpec, ModelSpec, MoeSpec
from evict_profile.config.sweep import GridSpec, SweepSpec
from evict_profile.fingerprint import fingerprint
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted, fit_run
from evict_profile.report.data import View
from evict_profile.sweep.checks import UnionTest
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.store import Header, Store

ROUNDS = 7
REFERENCE_US = 2e4
US_PER_EXPERT = 170.0

FACTS = {
    "device": "Test CPU",
    "engine": "made_up",
    "engine_version": "1.0",
    "tp": 1,
    "ep": 1,
    "attention_backend": "plain",
    "moe_backend": "plain",
    "graph_mode": "eager",
    "clock": "process CPU time over reference",
    "layers": 2,
}


def tiny(name: str = "tiny") -> ModelSpec:
    """A model of four layers and 32 experts."""
    return ModelSpec(
        name=name,
        source="made for tests",
        hidden_size=512,
        num_layers=4,
        vocab_size=2048,
        attention=AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64),
        moe=MoeSpec(num_experts=32, top_k=4, expert_width=512),
    )


def cost_us(cell: Cell, model: ModelSpec) -> float:
    """The truth that samples scatter around."""
    if cell.part == "ends":
        return 400.0 + 80.0 * cell.tokens
    natural = model.uniform_union(cell.tokens)
    union = natural if cell.split == "natural" else cell.union
    uneven = 1.1 if cell.split == "skewed" else 1.0
    return uneven * (2e3 + 2 * US_PER_EXPERT * union + 90.0 * cell.tokens)


def samples_of(grid: Grid, model: ModelSpec, seed: int) -> list[list[Sample]]:
    """One list a round, each cell once, the anchor among them."""
    rng = np.random.default_rng(seed)
    rounds = []
    for number in range(ROUNDS):
        order = rng.permutation(len(grid.cells))
        drawn = [
            _sample(grid.cells[i], model, number, place, rng)
            for place, i in enumerate(order.tolist())
        ]
        rounds.append(drawn)
    missing = [
        Sample(cell, 0, 999 + i, 0, status="infeasible", reason=why)
        for i, (cell, why) in enumerate(grid.infeasible)
    ]
    rounds[0] += missing
    return rounds


def _sample(
    cell: Cell, model: ModelSpec, number: int, place: int, rng: np.random.Generator
) -> Sample:
    machine = 1.0 + 0.05 * rng.standard_normal()
    noise = 1.0 + 0.01 * rng.standard_normal()
    clock_us = cost_us(cell, model) * machine * noise
    woken = cell.union or round(model.uniform_union(cell.tokens))
    return Sample(
        cell=cell,
        round=number,
        order=place,
        seed=place,
        clock_us=clock_us,
        wall_us=clock_us,
        reference_us=REFERENCE_US * machine,
        observed_width=cell.width,
        observed_union=float(woken) if cell.part == "layers" else float("nan"),
        union_low=woken,
        union_high=woken,
        events="steal 3%" if (number, place) == (2, 3) else "",
        at_unix=1.8e9 + 60.0 * number + 0.1 * place,
    )


def header_of(sweep: SweepSpec, model: ModelSpec, ladder: tuple[int, ...]) -> Header:
    """What the samples are samples of."""
    bandwidth = model.bytes_per_expert / US_PER_EXPERT / 1e3 / 0.8
    readings = (True, US_PER_EXPERT, 9.3, bandwidth, 0.8, 0.7, 0.9)
    test = UnionTest(8, 4, 32, 1, 4, 4e3, 13e3, 4e3, *readings)
    opened = {
        "ladder": list(ladder),
        "bandwidth_gbps": bandwidth,
        "bytes_per_expert": model.bytes_per_expert,
    }
    facts = fingerprint(FACTS, model)
    return Header(model, sweep, facts, opened, asdict(test), "1/1", 1.8e9)


def make_run(
    folder: Path,
    name: str = "tiny",
    split: tuple[str, ...] = ("balanced",),
    ladder: tuple[int, ...] = (),
) -> Fitted:
    """Sweep nothing, but leave on disk what a sweep would have, and fit it."""
    model = tiny(name)
    grid = GridSpec(
        width=(1, 2, 4, 8, 16),
        union=5,
        context=(64,),
        batch=(1, 2),
        max_tokens=16,
        split=split,  # type: ignore[arg-type]
    )
    sweep = SweepSpec(name="small", grid=grid)
    store = Store(folder)
    store.create(header_of(sweep, model, ladder))
    for samples in samples_of(make_grid(sweep, model), model, seed=1):
        store.append(samples)
    return fit_run(store)


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """The plain run: balanced and natural cells, no ladder."""
    return make_run(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def view(fitted: Fitted) -> View:
    """The plain run with its table."""
    return View(fitted, make_table(fitted, samples_sha256="0" * 64))


@pytest.fixture(scope="session")
def rich_view(tmp_path_factory: pytest.TempPathFactory) -> View:
    """A run with all that is optional: skewed cells, a ladder, a name to escape."""
    folder = tmp_path_factory.mktemp("rich")
    run = make_run(folder, "<b>&tiny", ("balanced", "skewed"), (1, 2, 4, 8, 16))
    return View(run, make_table(run, samples_sha256="0" * 64))
