"""What a table says of the sweep behind it."""

import numpy as np
import pytest

from evict_profile.fit.provenance import aa_floor, measured_minutes, provenance_of
from evict_profile.records import replace
from evict_profile.sweep.latency import Samples
from evict_profile.table import DATASHEET
from tests.factories import write_run


def test_the_aa_floor_is_the_noise_of_a_median():
    """Half a percent of noise gives a floor of well under 2 %, and not zero."""
    rng = np.random.default_rng(0)
    cells = {i: (1.0 + 0.005 * rng.standard_normal(12)).tolist() for i in range(50)}
    assert 0.0 < aa_floor(list(cells.values())) < 0.02


def test_the_aa_floor_is_that_of_the_worst_cells():
    """Two of twenty differ by a tenth; the others by a thousandth."""
    cells = {i: [1.0, 1.1 if i < 2 else 1.001] * 2 for i in range(20)}
    assert aa_floor(list(cells.values())) == pytest.approx(0.1)


@pytest.mark.parametrize(("taken", "noisy"), [(1, False), (2, True), (3, True)])
def test_a_short_sweep_has_a_floor_where_cells_were_measured_twice(taken, noisy):
    """Fewer than four samples a cell are no runner that repeats itself."""
    rng = np.random.default_rng(0)
    cells = {i: rng.normal(100.0, 1.0, taken) for i in range(50)}
    assert (aa_floor(list(cells.values())) > 0.0) is noisy


def test_an_interruption_is_no_time_spent_measuring():
    """Thirty samples two seconds apart, an hour, and thirty more; in any order."""
    begun = np.arange(31) * 2.0
    at_unix = np.concatenate([begun + 3_660.0, begun])
    assert measured_minutes(at_unix) == 2.0


def test_slow_samples_are_no_interruption():
    """Sixty of 70 seconds take 70 minutes, an hour in their midst not counted."""
    begun = np.arange(31) * 70.0
    at_unix = np.concatenate([begun, begun[1:] + begun[-1] + 3_600.0])
    assert measured_minutes(at_unix) == pytest.approx(69.0, abs=1.0)


def test_a_datasheet_has_no_sessions_that_differ(tmp_path):
    store = write_run(tmp_path)
    header = store.header()
    promised = replace(header, fingerprint={**header.fingerprint, "clock": DATASHEET})
    half_widths = (
        provenance_of(each, Samples(store.frame()), cells=1).sessions.half_width
        for each in (header, promised)
    )
    assert next(half_widths) > 0.0 == next(half_widths)


def test_slow_times_count_on_average(tmp_path):
    """Every fourth reference took twice as long; costs are of the others' speed."""
    store = write_run(tmp_path)
    frame = store.frame()
    us = np.where(np.arange(len(frame)) % 4, 100.0, 200.0)
    told = frame.assign(reference_us=us, status="ok", clock_us=1.0)
    made = provenance_of(store.header(), Samples(told), cells=1)
    assert made.reference_us == 100.0
