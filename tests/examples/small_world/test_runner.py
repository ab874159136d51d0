"""The example's sweep opens its runner, a script outside runners/."""

from pathlib import Path

import pytest

from evict_profile.cells import Cell
from evict_profile.config import load_model, load_sweep
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.session import OpenRunner

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/small_world"


@pytest.mark.world
def test_the_sweep_measures_the_shipped_world(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    model = load_model(str(EXAMPLE / "stdlib/model.yaml"))
    spec = load_sweep(str(EXAMPLE / "sweep.yaml"))
    log = tmp_path / "runner.log"
    with OpenRunner(spec, model, make_grid(spec, model), log) as session:
        cell = Cell("layers", 4, 8, 128, 1, "balanced")
        (sample,) = session.runner.measure(cell, [1])
    assert sample.observed_union == 8.0
    assert session.facts["engine"] == "tree_decoding"
