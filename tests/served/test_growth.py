"""What is known of a step that nobody measured."""

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


def test_plain_decoding_is_one_plain_step_on_every_server():
    assert unserved(1).value == Estimate(1.0, 1.0, 1.0)


@given(width=st.integers(2, 64))
def test_a_wider_step_of_an_unknown_server_takes_longer(width):
    found, next_one = unserved(width).value, unserved(width + 1).value
    assert 1.0 < found.value < next_one.value
    assert found.value == pytest.approx(math.exp(EXPONENT * math.log(width)))
    assert found.high / found.value == pytest.approx(math.exp(ERROR))
    assert found.low == pytest.approx(max(found.value * math.exp(-ERROR), 1.0))


@given(value=st.floats(0.1, 10.0), error=st.floats(0.0, 2.0))
def test_the_half_width_of_an_interval_is_its_error(value, error):
    assert log_half_width(around(value, error)) == pytest.approx(error, abs=1e-12)


def test_of_an_uneven_interval_the_larger_half_counts():
    assert log_half_width(Estimate(1.0, 0.5, 1.1)) == pytest.approx(math.log(2.0))
