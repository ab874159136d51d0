"""The scaling test says how far half the layers miss when scaled up."""

from pathlib import Path

import pytest

from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.session import Session


def test_error_is_the_fixed_cost_counted_twice(
    spec: SweepSpec, model: ModelSpec, grid: Grid, tmp_path: Path
) -> None:
    """One layer scaled to two doubles what is paid once a forward, and no more."""
    with Session(spec, model, grid, tmp_path / "runner.log") as session:
        test = session.scaling_test()
    slope_us = model.bytes_per_expert / 7e3
    once_us = 900.0 + 7.0 * grid.anchor.tokens
    large_us = once_us + 2.0 * slope_us * grid.anchor.union
    assert (test.small_layers, test.large_layers) == (1, 2)
    assert test.error == pytest.approx(once_us / large_us, abs=0.03)
    assert test.error_low <= test.error <= test.error_high
