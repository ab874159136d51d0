"""What cells that nothing was fitted to say of the fit."""

from pathlib import Path

import numpy as np
import pytest

from evict_profile.fit.estimable import marginal_costs
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted, fit_run
from evict_profile.fit.gates import judge
from evict_profile.fit.points import split_points
from evict_profile.records import replace
from evict_profile.sweep.grid import make_grid
from tests.factories import MODEL, SWEEP, write_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """A run that costs between the levels what the levels say."""
    return fit_run(write_run(tmp_path_factory.mktemp("sound"), between=0.0))


@pytest.fixture(scope="module")
def bent(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """A run that costs a tenth more between the levels."""
    return fit_run(write_run(tmp_path_factory.mktemp("bent"), between=0.1))


def test_nothing_is_fitted_to_validation_cells(sound: Fitted, bent: Fitted) -> None:
    """What they cost leaves the fit as it is."""
    assert len(sound.validation.points) == 16
    assert not set(sound.validation.points.cells) & set(sound.points.cells)
    for one, other in zip(sound.cost.layers.terms, bent.cost.layers.terms, strict=True):
        assert one == other
    fits = (each.cost.layers.us_per_unit for each in (sound, bent))
    np.testing.assert_allclose(*fits, rtol=0.05, atol=5.0)


def test_a_sound_fit_misses_them_by_noise(sound: Fitted) -> None:
    error = sound.validation.error(sound.cost)
    assert error is not None
    assert error.cells == 16
    assert error.p90 < 0.01
    assert sound.misfit < 0.003


def test_a_fit_that_is_wrong_between_its_levels_says_so(bent: Fitted) -> None:
    """A tenth at the validation cells, nothing at the natural ones."""
    table = make_table(bent)
    assert table.fit.validation is not None
    assert table.fit.validation.median == pytest.approx(0.1 / 1.1, rel=0.1)
    share = 16 / (16 + len(bent.natural.points))
    assert bent.misfit == pytest.approx(0.1 * share**0.5, rel=0.1)


def test_intervals_are_as_wide_as_what_it_misses(sound: Fitted, bent: Fitted) -> None:
    """Two standard errors of the misfit on either side, where noise is small."""
    for fitted in (sound, bent):
        price = make_table(fitted).staircases[0].price
        half = (price.high_us - price.low_us) / 2.0 / price.step_cost_us
        least = 2.0 * fitted.misfit
        assert np.all(half >= least - 1e-3)
        assert np.median(half) < least + 0.02


def test_a_fit_that_errs_between_its_levels_is_less_sure_of_its_slopes(
    sound: Fitted, bent: Fitted
) -> None:
    """The cells that it has not seen would move them."""
    costs = (marginal_costs(f.cost, f.points, f.validation) for f in (sound, bent))
    for narrow, wide in zip(*costs, strict=True):
        assert np.ptp(wide.us_interval) > 3.0 * np.ptp(narrow.us_interval)


def test_a_fit_that_is_far_off_between_its_levels_is_no_table(tmp_path: Path) -> None:
    """Though it meets the cells of its grid."""
    fitted = fit_run(write_run(tmp_path / "run", between=0.3))
    failed = [gate.name for gate in judge(fitted) if not gate.passed]
    assert failed == ["validation"]


def test_a_run_without_them_claims_nothing(tmp_path: Path) -> None:
    fitted = fit_run(write_run(tmp_path / "run"))
    assert not len(fitted.validation.points)
    assert make_table(fitted).fit.validation is None
    assert "validation" not in make_table(fitted).document["fit"]


def test_cells_that_showed_it_wrong_join_the_fit_as_they_ran() -> None:
    """Where captured graphs pad them, at the next captured width."""
    spec = replace(SWEEP, grid=replace(SWEEP.grid, validation=4))
    grid = make_grid(spec, MODEL)
    latencies = dict.fromkeys([*grid.measured, *grid.further[0]], [100.0] * 6)
    ladder = sorted({c.width for c in grid.cells})
    fitted, validates = split_points(latencies, grid, ladder)
    assert len(fitted) == len(grid.cells) + 4
    assert len(validates) == 4
    assert {c.width for c in (*fitted.cells, *validates.cells)} == set(ladder)
    unions = sorted(c.union for c in grid.further[0])
    assert sorted(c.union for c in validates.cells) == unions
