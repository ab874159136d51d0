"""The runner of examples/, run as a sweep runs it."""

from pathlib import Path

import pytest
from msgspec import structs

from evict_profile.cells import Cell
from evict_profile.config import load_model, load_sweep
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.session import OpenRunner

RUNNER = Path(__file__).parents[2] / "examples/numpy_moe.py"


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    model = load_model("tiny")
    spec = structs.replace(load_sweep("tiny"), runner=str(RUNNER))
    grid = make_grid(spec, model)
    log = tmp_path_factory.mktemp("own") / "log"
    with OpenRunner(spec, model, grid, log) as session:
        # What numpy computes in, whatever the sweep asks for, is in the table's key.
        assert session.facts["dtype"] == session.model.dtype == "float32"
        yield session.runner


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("union", [5, 8])
def test_a_forced_union_is_what_runs(runner, union, layers):
    cell = Cell("layers", 4, union, 64, 1, "balanced")
    for sample in runner.measure(cell, [1, 2], layers):
        assert sample.union_low == sample.union_high == union
        assert sample.clock_us > 0.0 and sample.reference_us > 0.0


def test_natural_routing_and_the_rest_are_measured(runner):
    (natural,) = runner.measure(Cell("layers", 4, 0, 64, 1, "natural"), [1])
    assert natural.observed_union >= 4
    (rest,) = runner.measure(Cell("non_moe", 4, 0, 64, 1, "natural"), [1])
    assert rest.observed_union != rest.observed_union and rest.clock_us > 0.0
