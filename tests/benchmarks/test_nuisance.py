"""The effect of which experts run, measured by a clock alone, as on a GPU.

The scripted runner has no reference: its time is NaN.
"""

import json
import math
from pathlib import Path

import pytest

from benchmarks import nuisance
from evict_profile.config import load_sweep
from evict_profile.records import replace

SCRIPTED = Path(__file__).parents[1] / "runners" / "scripted.py"


def test_nuisance_is_measured_by_the_clock_alone(monkeypatch, capsys):
    """Every number is one, and of the size of the script's noise."""
    sweep = replace(load_sweep("repeat"), runner=str(SCRIPTED))
    monkeypatch.setattr(nuisance, "load_sweep", lambda name: sweep)
    assert nuisance.main(["--model", "tiny"]) == 0
    for cell in json.loads(capsys.readouterr().out)["cells"]:
        assert cell["skewed_over_balanced"] == pytest.approx(1.0, abs=0.05)
        assert 0.0 <= cell["balanced"]["one_sample_noise"] < 0.05
        assert all(map(math.isfinite, cell["interval"]))
