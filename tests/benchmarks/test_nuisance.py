"""Scripts that pair a clock with a reference do without one, as on a GPU.

The scripted runner has none: its reference is NaN.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import nuisance
from evict_profile.config import load_sweep
from evict_profile.config.sweep import SweepSpec
from evict_profile.records import replace

SCRIPTED = Path(__file__).parents[1] / "runners" / "scripted.py"
Told = Callable[[ModuleType], Any]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """What a script prints about the scripted runner."""

    def scripted(name: str) -> SweepSpec:
        return replace(load_sweep(name), runner=str(SCRIPTED))

    def run(module: ModuleType) -> Any:
        monkeypatch.setattr(module, "load_sweep", scripted)
        assert module.main(["--model", "tiny"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_nuisance_is_measured_by_the_clock_alone(told: Told) -> None:
    """Every number is one, and of the size of the script's noise."""
    for cell in told(nuisance)["cells"]:
        assert cell["skewed_over_balanced"] == pytest.approx(1.0, abs=0.05)
        assert 0.0 <= cell["balanced"]["one_sample_noise"] < 0.05
        assert all(map(math.isfinite, cell["interval"]))
