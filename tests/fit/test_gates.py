"""Each gate passes what it should, and names the mend when it does not."""

import numpy as np
import pytest

from evict_profile.fit import gates
from evict_profile.fit.fitted import Fitted, aa_floor, drift_of
from evict_profile.records import replace
from evict_profile.stats import ErrorSummary


def test_a_good_run_passes_every_gate(fitted: Fitted) -> None:
    """All five, by name."""
    judged = gates.judge(fitted)
    assert [gate.name for gate in judged if gate.passed] == [
        "union test",
        "roofline slope",
        "held-out error",
        "drift",
        "coverage",
    ]


@pytest.mark.parametrize("bandwidth_gbps", [2.0, 100.0])
def test_an_impossible_slope_fails(fitted: Fitted, bandwidth_gbps: float) -> None:
    """Faster than the memory, or far slower, is something else than expert weights."""
    made = replace(fitted.provenance, bandwidth_gbps=bandwidth_gbps)
    gate = gates.slope_gate(replace(fitted, provenance=made))
    assert not gate.passed
    assert "sweep anew" in gate.message


def test_a_large_held_out_error_fails() -> None:
    """Median 6 % is over the limit."""
    gate = gates.error_gate("held-out error", ErrorSummary(0.06, 0.1, 0.2, 30))
    assert not gate.passed
    assert "more samples" in gate.message


def test_drift_is_the_last_third_over_the_first(fitted: Fitted) -> None:
    """A step of 10 % in the last third is a drift of 10 %, whatever the noise."""
    stepped = fitted.frame.copy()
    late = stepped["round"] > stepped["round"].max() * 2 / 3
    stepped.loc[late, "clock_us"] *= 1.1
    assert drift_of(stepped) == pytest.approx(0.1, abs=0.005)
    assert not gates.drift_gate(0.1).passed


def test_failed_cells_fail_the_coverage(fitted: Fitted) -> None:
    """With a fifth of the cells out of memory there is no table."""
    frame = fitted.frame.copy()
    frame.loc[frame["width"] == 16, "status"] = "oom"
    gate = gates.coverage_gate(frame, fitted.points, whole=False)
    assert not gate.passed
    assert "sweep anew" in gate.message


def test_parts_are_due_as_the_sweep_measures_them(fitted: Fitted) -> None:
    """Layers without the rest cover a model only where they are whole forwards."""
    layers, frame = fitted.layer_points, fitted.frame
    assert gates.coverage_gate(frame, layers, whole=True).passed
    gate = gates.coverage_gate(frame, layers, whole=False)
    assert not gate.passed
    assert "none of the non_moe; run the same sweep again" in gate.message


def test_the_aa_floor_is_the_noise_of_a_median() -> None:
    """Half a percent of noise gives a floor of well under 2 %, and not zero."""
    rng = np.random.default_rng(0)
    cells = {i: (1.0 + 0.005 * rng.standard_normal(12)).tolist() for i in range(50)}
    assert 0.0 < aa_floor(cells) < 0.02  # type: ignore[arg-type]
