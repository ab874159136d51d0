"""What is said of a server that nobody ran."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.served.growth import (
    ERROR,
    EXPONENT,
    around,
    log_half_width,
    unserved,
)
from evict_profile.stats import Estimate


@given(st.integers(2, 32))
def test_a_wider_step_takes_longer_and_never_as_long_as_plain_steps(width):
    ratio = unserved(width).value
    assert unserved(width - 1).value.value < ratio.value < width
    assert ratio.value == pytest.approx(width**EXPONENT)
    assert log_half_width(ratio) == pytest.approx(ERROR)


def test_a_plain_step_is_itself():
    assert unserved(1).value == Estimate(1.0, 1.0, 1.0)


@given(st.floats(0.1, 10.0), st.floats(0.0, 1.0))
def test_an_error_is_one_factor_to_both_sides(value, error):
    found = around(value, error)
    assert found.high / value == pytest.approx(value / found.low)
    assert log_half_width(Estimate(value, found.low, found.high * 2)) == pytest.approx(
        error + math.log(2)
    )
