"""A trace of one model, a table of another, and forwards whose time is known."""

import math
from typing import Any

import pytest

from benchmarks.carried import informed
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from runners.small_world.weights import SmallWorld
from runners.tree_decoding.session import TraceSession
from tests.benchmarks.small_session import open_random, read_random
from tests.runners.tree_decoding import conftest as tree_decoding
from tests.traces.synthetic import Plan, make_trace

ENDS_US, EXPERT_US, TOKEN_US = 50.0, 10.0, 2.0
random_world = tree_decoding.world


class Scripted:
    """Times forwards by a formula; `asked` are the cells that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, int]] = []
        self.reference_us = math.nan
        self.slow = 1.0

    def measure(self, ask: dict[str, Any]) -> dict[str, Any]:
        """A sample for each seed, all alike."""
        cell = ask["cell"]
        self.asked.append(tuple(cell[n] for n in ("part", "width", "union", "batch")))
        tokens = cell["width"] * cell["batch"]
        layers_us = EXPERT_US * cell["union"] + TOKEN_US * tokens
        us = ENDS_US if cell["part"] == "ends" else layers_us
        sample = {"clock_us": self.slow * us, "reference_us": self.reference_us}
        return {"samples": [sample for _ in ask["seeds"]]}


@pytest.fixture
def scripted() -> Scripted:
    """A clock by formula."""
    return Scripted()


@pytest.fixture(scope="session")
def trace() -> Trace:
    """Two workloads of five prompts, 16 experts, top-2."""
    return make_trace(Plan(prompts=5, tokens=16))


@pytest.fixture(scope="session")
def table(fitted: Fitted) -> CostTable:
    """Of a model of 32 experts, top-4."""
    return make_table(fitted, "0" * 64)


@pytest.fixture(scope="session")
def informed_table(table: CostTable, trace: Trace) -> CostTable:
    """That table with what the trace tells; a drafted level is a tenth of a step."""
    return informed(table, trace, context=64, draft_share=0.1)


@pytest.fixture(scope="session")
def short_trace() -> Trace:
    """Three replies of six tokens."""
    return make_trace(Plan(prompts=3, tokens=6, workloads=("prose",)))


@pytest.fixture(scope="session")
def random_session(random_world: SmallWorld) -> TraceSession:
    """An open world of random weights: 3 layers of 8 experts, top-2."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        read_random(monkeypatch, random_world)
        return open_random()
