"""Intervals: misfit at cells that nothing was fitted to."""

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cells import CELL_FIELDS, measured
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import fit_run
from evict_profile.fit.gates import judge
from evict_profile.fit.intervals import interval, misfit_of
from evict_profile.fit.points import HeldOut, split_points
from evict_profile.records import replace
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.latency import Samples
from tests.factories import MODEL, SWEEP, timed, write_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run that costs between the levels what the levels say."""
    return fit_run(write_run(tmp_path_factory.mktemp("sound"), between=0.0))


@pytest.fixture(scope="module")
def bent(tmp_path_factory):
    """A run that costs a tenth more between the levels."""
    return fit_run(write_run(tmp_path_factory.mktemp("bent"), between=0.1))


def test_an_interval_stays_above_a_twentieth_of_its_cost():
    low, high = interval(np.array([100.0]), np.array([60.0]))
    assert (low, high) == (5.0, 220.0)


def test_nothing_is_fitted_to_validation_cells(sound, bent):
    assert len(sound.validation.points) == 16
    assert not set(sound.validation.points.index) & set(sound.points.index)
    for one, other in zip(sound.cost.layers.terms, bent.cost.layers.terms, strict=True):
        assert one == other
    fits = (each.cost.layers.us_per_unit for each in (sound, bent))
    np.testing.assert_allclose(*fits, rtol=0.05, atol=5.0)


def test_a_sound_fit_misses_them_by_noise(sound):
    error = sound.validation.error
    assert error.cells == 16
    assert error.p90 < 0.01
    assert _own_misfit(sound) < 0.003


def test_a_fit_that_is_wrong_between_its_levels_says_so(bent):
    """By a tenth there, however many cells lie at the levels and show nothing."""
    table = make_table(bent)
    assert table.fit.validation is not None
    assert table.fit.validation.median == pytest.approx(0.1 / 1.1, rel=0.1)
    assert 0.04 < _own_misfit(bent) < 0.1


def test_intervals_are_as_wide_as_what_it_misses(sound, bent):
    """Two standard errors of the misfit on either side, where noise is small."""
    for fitted in (sound, bent):
        place = [np.array([value]) for value in (8.0, 6.0, 64.0, 1.0)]
        cost_us, low_us, high_us = fitted.costs_at(*place)
        least = 2.0 * fitted.misfit
        half = (high_us - low_us) / 2.0 / cost_us
        assert least - 1e-9 <= half <= least + 0.02


@given(st.floats(0.0, 0.3), st.integers(2, 30))
def test_a_misfit_is_what_noise_does_not_explain(off, cells):
    points = pd.DataFrame({"latency_us": [100.0 * (1.0 + off)] * cells, "error": 0.1})
    found = misfit_of(HeldOut(points, np.full(cells, 100.0)))
    assert found == pytest.approx(max(off**2 - 0.1**2, 0.0) ** 0.5, abs=1e-7)


def test_a_misfit_of_few_cells_has_one_standard_error_added():
    """Of its square; and too few cells are no proof that there is none."""
    off = np.array([0.1, -0.1, 0.02, -0.02])
    points = pd.DataFrame({"latency_us": 100.0 * (1.0 + off), "error": 0.05})
    square = off**2 - 0.05**2
    found = misfit_of(HeldOut(points, np.full(4, 100.0)))
    assert found**2 == pytest.approx(square.mean() + square.std(ddof=1) / 2.0)
    assert misfit_of(HeldOut(points[:1], np.full(1, 100.0))) == np.inf
    assert misfit_of() == np.inf


def test_held_out_cells_show_the_misfit_where_few_others_are_unseen(fitted):
    """Without natural and validation cells, cells that differ by 5 % show it."""
    frame = fitted.frame[fitted.frame["split"] != "natural"]
    own = frame.groupby(list(CELL_FIELDS)).ngroup()
    slower = 1.0 + 0.05 * np.random.default_rng(0).integers(0, 2, own.max() + 1)
    frame = frame.assign(clock_us=frame["clock_us"] * slower[own])
    rest = fitted.frame[fitted.frame["part"] == "non_moe"]
    alone = replace(fitted, samples=Samples(pd.concat([frame, rest])))
    assert len(alone.natural.points) == len(alone.validation.points) == 0
    assert 0.02 < _own_misfit(alone) < 0.05


def test_a_fit_that_is_far_off_between_its_levels_is_no_table(tmp_path):
    fitted = fit_run(write_run(tmp_path / "run", between=0.3))
    failed = [gate.name for gate in judge(fitted) if not gate.passed]
    assert failed == ["validation", "half-width"]


def test_a_run_without_them_claims_nothing(tmp_path):
    fitted = fit_run(write_run(tmp_path / "run"))
    assert not len(fitted.validation.points)
    assert make_table(fitted).fit.validation is None
    assert "validation" not in make_table(fitted).document["fit"]


def _own_misfit(fitted):
    return (fitted.misfit**2 - (fitted.shared_half_width / 2.0) ** 2) ** 0.5


def test_cells_between_the_levels_stand_at_the_width_that_ran():
    """Where captured graphs pad them, at the next captured width."""
    spec = replace(SWEEP, grid=replace(SWEEP.grid, validation=4))
    grid = make_grid(spec, MODEL)
    latencies = dict.fromkeys(grid.measured, [100.0] * 6)
    capture_sizes = sorted({c.width for c in grid.cells})
    cells = measured(timed(latencies)).assign(observed_union=0.0)
    fitted, validates = split_points(cells, grid, capture_sizes)
    assert len(fitted) == len(grid.cells) + 4
    assert len(validates) == 4
    assert {c.width for c in (*fitted.index, *validates.index)} == set(capture_sizes)


def test_an_older_run_is_validated_by_all_its_cells_off_the_levels():
    grid = make_grid(SWEEP, MODEL)
    off = make_grid(replace(SWEEP, grid=replace(SWEEP.grid, validation=4)), MODEL)
    assert set(grid.validating({*off.measured})) == {*off.between, *off.validation}


def test_one_validation_cell_that_is_ten_times_off_makes_no_table(sound):
    """It is one of sixteen, so that neither median nor p90 shows it."""
    frame, (cell, *_) = sound.frame.copy(), sound.validation.points.index
    its = (frame[list(CELL_FIELDS)] == list(astuple(cell))).all(axis=1)
    frame.loc[its, "clock_us"] *= 10.0
    judged = judge(replace(sound, samples=Samples(frame)))
    failed = [gate.name for gate in judged if not gate.passed]
    assert "validation" not in failed
    assert "half-width" in failed
