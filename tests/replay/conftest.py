"""A small trace, and a table that prices it, knows its drafter and its clock."""

from pathlib import Path

import pytest

from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted
from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.simulate import StepPrices
from evict_profile.table import (
    Acceptance,
    ConditionalAcceptance,
    CostTable,
    DraftClock,
    Drafting,
)
from evict_profile.traces import Trace
from tests.traces.synthetic import ABOUT, Plan, make_trace, write_trace

PRICED = replace(ABOUT, layers=4, experts=32, top_k=4)
"""A trace of the model that the known run prices."""
CALIBRATION = Acceptance(
    workload="made up",
    steps=1,
    scores=(0.0, 0.5, 1.0),
    acceptances=((0.0, 0.4, 0.8), (0.0, 0.35, 0.64)),
    per_rank=(0.5, 0.1, 0.05),
    held_out={},
    conditional=ConditionalAcceptance(
        (0.0, 0.5, 1.0), ((0.0, 0.6, 0.9), (0.0, 0.2, 0.5))
    ),
)
DRAFTING = Drafting(
    "made up",
    "a test",
    (
        DraftClock(1, (0.0, 300.0, 550.0, 800.0, 1050.0), 200.0, 50.0),
        DraftClock(4, (0.0, 400.0, 700.0, 1000.0, 1300.0), 400.0, 100.0),
    ),
)


@pytest.fixture(scope="session")
def trace() -> Trace:
    """Two workloads of five prompts."""
    return make_trace(Plan(prompts=5, tokens=24))


@pytest.fixture(scope="session")
def bare_table(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> CostTable:
    """StepPrices and nothing else."""
    path = tmp_path_factory.mktemp("table") / "1.0.0.json"
    make_table(fitted, "0" * 64).save(path)
    return CostTable.load(path)


@pytest.fixture(scope="session")
def table(bare_table: CostTable) -> CostTable:
    """The same, calibrated."""
    return replace(bare_table, acceptance=CALIBRATION, drafting=DRAFTING)


@pytest.fixture(scope="session")
def arrays(trace: Trace) -> TraceArrays:
    """The trace laid out."""
    return TraceArrays(trace)


@pytest.fixture
def prices(table: CostTable, arrays: TraceArrays) -> StepPrices:
    """Of one request."""
    return StepPrices(table, arrays, 1)


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two workloads on disk."""
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    return write_trace(path, Plan(prompts=5, tokens=16, about=PRICED))
