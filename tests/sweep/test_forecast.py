"""How long a sweep takes is said before it begins, by its own first samples."""

import re
import time

from evict_profile.sweep import forecast as forecasts
from evict_profile.sweep.forecast import forecast


def test_a_first_sample_and_a_start_count_once_a_session(open_session, monkeypatch):
    """30 cells, first 0.4 s and then 0.1 s each; 56 samples of tests, two restarts."""
    monkeypatch.setattr(forecasts, "_wall_s", lambda _, cell, n: (0.4, 0.1)[n])
    with open_session(sessions=3) as session:
        session.open_s = 12.0
        said = forecast(session)
    others_s = 56 * 0.1 + 2 * 12.0
    least_s, most_s = (30 * (3 * 0.4 + again * 0.1) + others_s for again in (3, 9))
    assert said == (
        f"30 cells of 6 to 12 samples in 3 sessions: about {least_s:.0f} s to "
        f"{most_s / 60:.1f} min on this machine, by 6 of them"
    )


def test_samples_fill_whole_rounds(open_session, monkeypatch):
    """Six samples, four a round, are eight: 30 x 8 and the tests, a second each."""
    monkeypatch.setattr(forecasts, "_wall_s", lambda *_: 1.0)
    with open_session(samples_per_round=4) as session:
        assert f"about {(30 * 8 + 56) / 60:.1f} min to" in forecast(session)


def test_a_sweep_takes_no_less_than_forecast(store, sweep, open_session, monkeypatch):
    """Where every sample takes as long; the machine's other load only adds to it."""
    monkeypatch.setenv("SCRIPTED_SLEEP", "0.02")
    with open_session() as session:
        least_s = int(re.findall(r"about (\d+) s", forecast(session))[0])
    begun = time.monotonic()
    assert sweep(store)
    assert 0.02 * 30 * 6 < least_s < 1.5 * (time.monotonic() - begun)
