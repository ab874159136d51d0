"""The union test and the scaling test of a runner."""

from dataclasses import replace

import numpy as np
import pytest

from evict_profile.cells import UNTIMED
from evict_profile.config import GridSpec, SweepSpec, load_model
from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.sweep.checks import UnionTest, run_union_test, union_test_width
from evict_profile.sweep.grid import make_grid

TINY = load_model("tiny")


def grid_of(*widths):
    axes = GridSpec(width=widths, union=(4,), context=(64,))
    return make_grid(SweepSpec(name="given", grid=axes), TINY)


def test_a_runner_that_follows_the_union_passes(open_session):
    """The slope implies the bandwidth share that the script was written for."""
    with open_session() as session:
        test = session.union_test()
    assert test.passed
    assert (test.width, test.small_union, test.large_union) == (8, 4, 32)
    assert test.bandwidth_share == pytest.approx(0.7, rel=0.06)
    assert "0.7" in test.sentence() or "0.6" in test.sentence()


@pytest.mark.parametrize(
    ("slope", "reason"),
    [
        ("0", "a difference within noise"),
        ("0.0001", "a difference within noise"),
        ("0.5", r"1\.\d+ of the measured copy .*where 0\.3 to 1\.05 is expected"),
        ("4", r"0\.1\d of the measured copy .*where 0\.3 to 1\.05 is expected"),
    ],
)
def test_a_runner_that_does_not_read_the_union_s_weights_fails(
    slope, reason, open_session, monkeypatch
):
    """No time by the union at all, or faster or much slower than the memory."""
    monkeypatch.setenv("SCRIPTED_SLOPE", slope)
    with open_session() as session, pytest.raises(MeasurementError, match=reason):
        session.union_test()


READINGS = UnionTest(
    8, 4, 32, 1, 4, 1000.0, 2000.0, 900.0, True, 10.0, 70.0, 100.0, 0.7, 0.65, 0.75
)


@pytest.mark.parametrize(
    ("low", "high", "passed"),
    [
        (0.2, 0.29, False),
        (0.2, 0.3, True),
        (1.05, 1.2, True),
        (1.06, 1.2, False),
        (-0.8, -0.7, False),
    ],
)
def test_the_range_of_shares(low, high, passed):
    """An interval that reaches into 0.3 to 1.05 of the copy, bounds included."""
    bounds = {"bandwidth_share_low": low, "bandwidth_share_high": high}
    assert replace(READINGS, **bounds).passed is passed


def test_times_without_any_slope_are_a_failure_and_no_division(
    open_session, monkeypatch
):
    """A clock so coarse that both medians are equal fails like any other."""
    with open_session() as session:
        equal = [replace(UNTIMED, clock_us=100.0)]
        monkeypatch.setattr(session.runner, "measure", lambda *_: equal)
        with pytest.raises(MeasurementError, match=r"within noise.* inf of the"):
            session.union_test()


@pytest.mark.parametrize(
    ("widths", "chosen"), [((1, 4, 8, 16), 8), ((1, 2, 4), 4), ((16, 64), 16)]
)
def test_width_is_the_smallest_that_fills_all_experts(widths, chosen):
    """Eight tokens of top-4 activate 32 experts; else the largest width must do."""
    assert union_test_width(grid_of(*widths), TINY) == chosen


def test_one_token_cannot_be_tested():
    """Width 1 has one union only; the message says what to add."""
    with pytest.raises(ConfigError, match="a width of at least 2; add one"):
        union_test_width(grid_of(1), TINY)


def test_overlapping_times_do_not_pass_on_slope_alone():
    """A likely bandwidth that noise could have made is no proof."""
    assert not replace(READINGS, differ=False).passed


@pytest.mark.parametrize(("slower", "differ"), [(1.14, True), (1.0, False)])
def test_a_wandering_speed_does_not_hide_the_union(
    slower, differ, open_session, monkeypatch
):
    """Half to full speed and back; cells take turns, so neighbours are compared."""
    noise = np.random.default_rng(0)
    speeds = iter(1.5 + 0.5 * np.sin(np.arange(99) / 6) + noise.normal(0, 0.02, 99))

    def measure(cell, _):
        us = 1e3 * next(speeds) * (slower if cell.union > 4 else 1.0)
        return [replace(UNTIMED, clock_us=us)]

    with open_session() as session:
        monkeypatch.setattr(session.runner, "measure", measure)
        asked = (session.runner, session.grid, session.model, session.opened)
        assert run_union_test(*asked, session.layers).differ is differ


@pytest.mark.parametrize(("slower", "differ"), [(10, False), (11, True)])
def test_the_large_union_is_the_slower_in_eleven_of_twelve_turns(
    slower, differ, open_session, monkeypatch
):
    """Ten of twelve happen by chance in 2 of 100 runners that ignore the union."""
    turns = iter([1.1] * slower + [0.9] * (12 - slower))

    def measure(cell, _):
        us = 1e3 * (next(turns) if cell.union > 4 else 1.0)
        return [replace(UNTIMED, clock_us=us)]

    with open_session() as session:
        monkeypatch.setattr(session.runner, "measure", measure)
        asked = (session.runner, session.grid, session.model, session.opened)
        assert run_union_test(*asked, session.layers).differ is differ


@pytest.mark.parametrize(
    ("kind", "dtype", "tried"),
    [("cpu", "bfloat16", True), ("cpu", "float32", False), ("cuda", "bfloat16", False)],
)
def test_a_refusal_names_the_load_and_the_flag_to_try(
    kind, dtype, tried, open_session, monkeypatch
):
    monkeypatch.setenv("SCRIPTED_SLOPE", "0")
    monkeypatch.setattr("os.getloadavg", lambda: (9.26, 1.0, 1.0))
    with open_session(dtype=dtype) as session:
        session.facts["device_kind"] = kind
        with pytest.raises(
            MeasurementError, match=r"9\.3 processes ran on \d+ core"
        ) as said:
            session.union_test()
    assert str(said.value).endswith("; try --dtype float32") is tried


def test_one_sentence_has_all_readings_and_what_to_check():
    """Noise and a kernel that ignores routing look the same to the test."""
    failed = replace(READINGS, differ=False).sentence()
    for words in ("a difference within noise", "experts kernel", "load on the machine"):
        assert words in failed
    assert "check" not in READINGS.sentence()
    assert READINGS.sentence() in failed.replace("within noise", "beyond noise")


def test_error_is_the_fixed_cost_counted_twice(open_session, model, grid):
    """One layer scaled to two doubles what is paid once a forward, and no more."""
    with open_session() as session:
        test = session.scaling_test()
    slope_us = model.bytes_per_expert / 7e3
    once_us = 200.0 + 7.0 * grid.anchor.tokens
    large_us = once_us + 2.0 * slope_us * grid.anchor.union
    assert (test.small_layers, test.large_layers) == (1, 2)
    assert test.error == pytest.approx(once_us / large_us, abs=0.03)
    assert test.error_low <= test.error <= test.error_high
