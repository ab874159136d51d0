"""The runner that docs/build/extend.md shows, run as a sweep runs it."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from evict_profile.cells import Cell
from evict_profile.config import load_model, load_sweep
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.session import OpenRunner

PAGE = Path(__file__).parents[2] / "docs/build/extend.md"


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (code,) = re.findall(r"```python title=.*?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "numpy_moe.py").write_text(code)
    model = load_model("tiny")
    spec = structs.replace(load_sweep("tiny"), runner=str(folder / "numpy_moe.py"))
    grid = make_grid(spec, model)
    with OpenRunner(spec, model, grid, folder / "log") as session:
        # What numpy computes in, whatever the sweep asks for, is in the table's key.
        assert session.facts["dtype"] == session.model.dtype == "float32"
        yield session.runner


@pytest.mark.parametrize("union", [5, 8])
def test_a_forced_union_is_what_runs(runner, union):
    for sample in runner.measure(Cell("layers", 4, union, 64, 1, "skewed"), [1, 2]):
        assert sample["union_low"] == sample["union_high"] == union
        assert sample["clock_us"] > 0.0 and sample["reference_us"] > 0.0


def test_natural_routing_and_the_rest_are_measured(runner):
    (natural,) = runner.measure(Cell("layers", 4, 0, 64, 1, "natural"), [1])
    assert natural["observed_union"] >= 4
    (rest,) = runner.measure(Cell("non_moe", 4, 0, 64, 1, "natural"), [1])
    assert rest["observed_union"] != rest["observed_union"] and rest["clock_us"] > 0.0
