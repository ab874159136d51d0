"""What cells that nothing was fitted to say of the fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cost_model import features_at
from evict_profile.fit.estimable import marginal_costs
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import fit_run
from evict_profile.fit.gates import judge
from evict_profile.fit.hinge import fit_hinges
from evict_profile.fit.points import Observations, features_of, split_points
from evict_profile.fit.unseen import Misses, own_misses
from evict_profile.records import replace
from evict_profile.sweep.grid import make_grid
from tests.factories import MODEL, SWEEP, write_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run that costs between the levels what the levels say."""
    return fit_run(write_run(tmp_path_factory.mktemp("sound"), between=0.0))


@pytest.fixture(scope="module")
def bent(tmp_path_factory):
    """A run that costs a tenth more between the levels."""
    return fit_run(write_run(tmp_path_factory.mktemp("bent"), between=0.1))


def test_nothing_is_fitted_to_validation_cells(sound, bent):
    """What they cost leaves the fit as it is."""
    assert len(sound.validation.points) == 16
    assert not set(sound.validation.points.cells) & set(sound.points.cells)
    for one, other in zip(sound.cost.layers.terms, bent.cost.layers.terms, strict=True):
        assert one == other
    fits = (each.cost.layers.us_per_unit for each in (sound, bent))
    np.testing.assert_allclose(*fits, rtol=0.05, atol=5.0)


def test_a_sound_fit_misses_them_by_noise(sound):
    error = sound.validation.error(sound.cost)
    assert error is not None
    assert error.cells == 16
    assert error.p90 < 0.01
    assert _median_misfit(sound) < 0.003


def test_a_fit_that_is_wrong_between_its_levels_says_so(bent):
    """By a tenth there, however many cells lie at the levels and show nothing."""
    table = make_table(bent)
    assert table.fit.validation is not None
    assert table.fit.validation.median == pytest.approx(0.1 / 1.1, rel=0.1)
    assert _median_misfit(bent) == pytest.approx(0.1 / 1.1, rel=0.2)


def test_intervals_are_as_wide_as_what_it_misses(sound, bent):
    """Two standard errors of the misfit on either side, where noise is small."""
    for fitted in (sound, bent):
        place = [np.array([value]) for value in (8.0, 6.0, 64.0, 1.0)]
        price_us, low_us, high_us = fitted.priced(*place)
        least = 2.0 * fitted.misfit(features_at(fitted.cost.shape, *place))
        half = (high_us - low_us) / 2.0 / price_us
        assert least - 1e-9 <= half <= least + 0.02


def test_a_fit_that_errs_in_one_place_is_less_sure_there():
    """Cells that miss by a tenth widen intervals around them, and leave the rest."""
    unions = np.repeat(2.0 ** np.arange(8), 4)
    misses = Misses(
        np.stack([np.zeros(32), np.log2(unions)] + [np.zeros(32)] * 2, axis=1),
        square=np.where(unions == 64.0, 0.1**2, 0.01**2),
        explained=np.full(32, 0.01**2),
    )
    one = np.ones(8)
    there = {"tokens": one, "union": 2.0 ** np.arange(8), "batch": one, "cache": one}
    shown = misses.shown_near(there)
    assert shown[6] == pytest.approx(0.1**2, rel=0.4)
    assert np.all(shown[:4] <= 0.0)
    assert misses.beyond_noise() == pytest.approx((0.1**2 - 0.01**2) / 8.0)


def test_cells_of_one_union_count_as_one():
    """Eight that the fit is drawn through hide nothing that one beside them shows."""

    def shown(sound):
        places = np.zeros((sound + 1, 4))
        places[-1] = np.log2([1.0, 1.1, 1.0, 1.0])
        square = np.append(np.zeros(sound), 0.1**2)
        at = dict.fromkeys(("tokens", "union", "batch", "cache"), np.ones(1))
        return float(Misses(places, square, np.zeros(sound + 1)).shown_near(at)[0])

    assert shown(8) == pytest.approx(shown(1))


def test_a_place_far_from_every_cell_goes_by_the_nearest():
    """Its weights do not all vanish."""
    misses = Misses(np.zeros((2, 4)), np.full(2, 0.01), np.full(2, 0.001))
    far = dict.fromkeys(("tokens", "union", "batch", "cache"), np.full(1, 1e9))
    assert misses.shown_near(far)[0] == pytest.approx(misses.shown())


@given(st.floats(0.0, 3.0), st.integers(1, 60))
def test_what_is_shown_is_less_than_what_is_expected(size, cells):
    """By one standard error of a mean of squares of normal noise."""
    places = np.zeros((cells, 4))
    misses = Misses(places, np.full(cells, size), np.ones(cells))
    expected = size - 1.0
    assert misses.beyond_noise() == pytest.approx(expected)
    assert misses.shown() == pytest.approx(expected - (2.0 / cells) ** 0.5)


def test_a_cell_of_the_fit_is_missed_by_what_a_fit_without_it_misses(sound):
    """Refitted with the same terms."""
    points, terms = sound.layer_points, sound.cost.layers.terms
    active = tuple(
        term
        for term, us in zip(terms, sound.cost.layers.us_per_unit, strict=True)
        if us > 0.0
    )
    features = features_of(sound.cost.shape, points.cells)
    misses = own_misses(sound.cost, points, features)
    seen = Observations(features, points.latency_us, points.relative_error)
    for cell in np.argsort(misses.square)[-5:]:
        others = np.arange(len(points)) != cell
        without = fit_hinges(active, seen.take(others)).latency_us(features)[cell]
        missed = (points.latency_us[cell] / without - 1.0) ** 2
        assert misses.square[cell] == pytest.approx(missed, rel=0.05)


def test_a_fit_that_errs_between_its_levels_is_less_sure_of_its_slopes(sound, bent):
    """The cells that it has not seen would move them."""
    costs = (marginal_costs(f.cost, f.points, f.validation) for f in (sound, bent))
    for narrow, wide in zip(*costs, strict=True):
        assert np.ptp(wide.us_interval) > 3.0 * np.ptp(narrow.us_interval)


def test_a_fit_that_is_far_off_between_its_levels_is_no_table(tmp_path):
    """Though it meets the cells of its grid."""
    fitted = fit_run(write_run(tmp_path / "run", between=0.3))
    failed = [gate.name for gate in judge(fitted) if not gate.passed]
    assert failed == ["validation"]


def test_a_run_without_them_claims_nothing(tmp_path):
    fitted = fit_run(write_run(tmp_path / "run"))
    assert not len(fitted.validation.points)
    assert make_table(fitted).fit.validation is None
    assert "validation" not in make_table(fitted).document["fit"]


def _median_misfit(fitted):
    """Over the cells that nothing was fitted to, what openings leave taken out."""
    square = fitted.misfit(fitted.validation.features) ** 2
    return float(np.median(square - (fitted.openings_reach / 2.0) ** 2) ** 0.5)


def test_cells_between_the_levels_stand_at_the_width_that_ran():
    """Where captured graphs pad them, at the next captured width."""
    spec = replace(SWEEP, grid=replace(SWEEP.grid, validation=4))
    grid = make_grid(spec, MODEL)
    latencies = dict.fromkeys(grid.measured, [100.0] * 6)
    ladder = sorted({c.width for c in grid.cells})
    fitted, validates = split_points(latencies, grid, ladder)
    assert len(fitted) == len(grid.cells) + 4
    assert len(validates) == 4
    assert {c.width for c in (*fitted.cells, *validates.cells)} == set(ladder)


def test_an_older_run_is_validated_by_all_its_cells_off_the_levels():
    grid = make_grid(SWEEP, MODEL)
    off = make_grid(replace(SWEEP, grid=replace(SWEEP.grid, validation=4)), MODEL)
    assert set(grid.validating({*off.measured})) == {*off.between, *off.validation}
