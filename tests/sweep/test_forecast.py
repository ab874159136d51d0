"""How long a sweep takes is said before it begins, by its own first samples."""

import re
import time

import pytest

from evict_profile.sweep import forecast as forecasts
from evict_profile.sweep.forecast import forecast, mean_sample_s


def test_a_first_sample_and_a_start_count_once_a_session(open_session, monkeypatch):
    """30 cells, first 0.4 s and then 0.1 s each; 56 samples of tests, two restarts."""
    monkeypatch.setattr(forecasts, "mean_sample_s", lambda _: (0.4, 0.1))
    with open_session(sessions=3) as session:
        session.open_s = 12.0
        said = forecast(session)
    others_s = 56 * 0.1 + 2 * 12.0
    least_s, most_s = (30 * (3 * 0.4 + again * 0.1) + others_s for again in (3, 9))
    assert said == (
        f"30 cells of 6 to 12 samples in 3 sessions: about {least_s:.0f} s to "
        f"{most_s / 60:.1f} min on this machine"
    )


def test_samples_fill_whole_rounds(open_session, monkeypatch):
    """Six samples, four a round, are eight: 30 x 8 and the tests, a second each."""
    monkeypatch.setattr(forecasts, "mean_sample_s", lambda _: (1.0, 1.0))
    with open_session(samples_per_round=4) as session:
        assert f"about {(30 * 8 + 56) / 60:.1f} min to" in forecast(session)


def test_the_mean_of_all_cells_follows_their_work(open_session, monkeypatch):
    """Eight cells are timed, and a first sample takes twice as long."""
    with open_session() as session:

        def seconds(cell):
            return float(forecasts._work(session, cell) @ (0.01, 3.0, 2.0))

        timed = []

        def timed_s(_, cell):
            timed.append(cell)
            return [2.0 * seconds(cell), seconds(cell)]

        monkeypatch.setattr(forecasts, "_timed_s", timed_s)
        first_s, again_s = mean_sample_s(session)
        cells = session.grid.measured
        assert again_s == pytest.approx(sum(map(seconds, cells)) / len(cells))
    assert first_s == pytest.approx(2.0 * again_s)
    assert len(timed) == 8


@pytest.mark.parametrize("how", ["OOM", "CRASH"])
def test_cells_that_cannot_be_measured_are_not_timed(open_session, monkeypatch, how):
    monkeypatch.setenv(f"SCRIPTED_{how}", "context=64")
    with open_session() as session:
        assert forecast(session) == "30 cells of 6 to 12 samples in 1 session"


def test_a_sweep_takes_no_less_than_forecast(store, sweep, open_session, monkeypatch):
    """Where every sample takes as long; the machine's other load only adds to it."""
    monkeypatch.setenv("SCRIPTED_SLEEP", "0.02")
    with open_session() as session:
        least_s = int(re.findall(r"about (\d+) s", forecast(session))[0])
    begun = time.monotonic()
    assert sweep(store)
    assert 0.02 * 30 * 6 < least_s < 1.5 * (time.monotonic() - begun)
