"""The whole model's cost: recovered, scaled, and with intervals that hold the truth."""

import numpy as np
import pytest

from evict_profile.cells import Cell, arrays_of
from evict_profile.fit.cost import interval
from evict_profile.fit.fitted import Fitted
from tests.factories import EXPERT_US, LAYERS, known_us

NEW = [Cell("layers", w, u, 128, 1, "balanced") for w, u in ((3, 6), (6, 20), (12, 30))]


def test_unseen_cells_are_priced_as_they_cost(fitted: Fitted) -> None:
    """Within 2 % of the known cost, between the measured points."""
    known = [known_us(cell, cell.union) for cell in NEW]
    np.testing.assert_allclose(fitted.cost.layers_us(NEW), known, rtol=0.02)


def test_the_whole_model_is_layers_scaled_plus_ends(fitted: Fitted) -> None:
    """verify = layers * 4 / 2 + ends for the four-layer tiny model."""
    cost = fitted.cost
    whole = cost.layers_us(NEW) * 4 / LAYERS + cost.ends_us(NEW)
    axes = arrays_of(NEW)
    forward_us = cost.forward.step_cost_us(axes["tokens"], axes["union"], 1, 128)
    np.testing.assert_allclose(forward_us, whole)


def test_the_slope_is_the_price_of_an_expert(fitted: Fitted) -> None:
    """Per layer and expert, what the samples were made with."""
    cell = Cell("layers", 8, 4, 64, 1, "balanced")
    assert fitted.cost.us_per_expert(cell, 32) == pytest.approx(EXPERT_US, rel=0.03)


def test_bootstrap_intervals_hold_the_known_cost(fitted: Fitted) -> None:
    """The interval is around the truth and narrower than 5 %."""
    low, high = interval([other.layers_us(NEW) for other in fitted.replicates])
    known = np.array([known_us(cell, cell.union) for cell in NEW])
    assert np.all(low <= known * 1.005)
    assert np.all(known * 0.995 <= high)
    assert np.all((high - low) / known < 0.05)
