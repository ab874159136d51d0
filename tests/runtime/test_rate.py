"""The online rate: it converges, follows, and depends on the past alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.runtime.rate import HALF_LIFE_STEPS, SpeedUp


@given(st.floats(0.1, 8.0), st.floats(0.5, 4.0))
def test_steady_steps_are_recovered(tokens: float, plain_tokens: float) -> None:
    """Equal steps give their own quotient."""
    speed_up = SpeedUp()
    for _ in range(1000):
        speed_up.observe(tokens, plain_tokens)
    assert speed_up.value == pytest.approx(tokens / plain_tokens, rel=1e-6)


def test_it_is_tokens_over_time_not_a_mean_of_quotients() -> None:
    """A long step weighs by its length, as in renewal reward."""
    speed_up = SpeedUp()
    for _ in range(1000):
        speed_up.observe(1.0, 1.0)
        speed_up.observe(6.0, 2.0)
    assert speed_up.value == pytest.approx(7.0 / 3.0, rel=0.02)


def test_a_change_of_workload_is_followed() -> None:
    """Half the way after one half-life, and 97 % after five."""
    speed_up = SpeedUp()
    for _ in range(1000):
        speed_up.observe(4.0, 1.0)
    for _ in range(int(HALF_LIFE_STEPS)):
        speed_up.observe(2.0, 1.0)
    assert speed_up.value == pytest.approx(3.0, rel=0.02)
    for _ in range(int(4 * HALF_LIFE_STEPS)):
        speed_up.observe(2.0, 1.0)
    assert speed_up.value == pytest.approx(2.06, rel=0.02)


def test_noise_is_averaged() -> None:
    """Scattered steps of mean 3 keep the estimate within a quarter of it."""
    rng, speed_up, seen = np.random.default_rng(0), SpeedUp(), []
    for _ in range(2000):
        speed_up.observe(float(rng.integers(1, 6)), 1.0)
        seen.append(speed_up.value)
    assert np.all(np.abs(np.array(seen[200:]) - 3.0) < 0.75)
