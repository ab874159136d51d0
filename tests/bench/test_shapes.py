"""Shapes of cost: each holds what it is there for."""

import numpy as np
import pytest

from evict_profile.bench.shapes import TIERS, CostShape, cost_shapes
from evict_profile.bench.trees import MOST_NODES

SHAPES = {shape.name: shape for shape in cost_shapes()}


@pytest.mark.parametrize("shape", cost_shapes(), ids=lambda shape: shape.name)
def test_a_shape_prices_every_width_and_starts_from_plain_decoding(
    shape: CostShape,
) -> None:
    """One price for each t up to the full tree; C(32) / C(1) as MoE models show."""
    assert shape.step_us.shape == (MOST_NODES + 2,)
    assert np.all(shape.step_us[1:] > 0.0)
    assert 1.0 <= shape.verify_us[32] / shape.decode_us <= 3.0
    assert shape.step_us[1] == shape.decode_us + shape.draft_us


@pytest.mark.parametrize("name", ["stairs", "dip"])
def test_stairs_are_flat_inside_a_tier(name: str) -> None:
    """Cost is read at the padded width, and changes from tier to tier only."""
    changes = 1 + np.flatnonzero(np.diff(SHAPES[name].verify_us[1:]))
    assert tuple(changes + 1) == tuple(tier + 1 for tier in TIERS[:-1])


def test_the_dip_makes_a_wider_tier_cheaper() -> None:
    """16 tokens cost less than 8; everywhere else cost rises."""
    cost_us = SHAPES["dip"].verify_us[list(TIERS)]
    assert list(np.diff(cost_us) < 0.0) == [False, False, False, True, False, False]


def test_the_union_is_concave_and_the_affine_cost_is_straight() -> None:
    """The marginal cost falls, and stays."""
    marginal_us = np.diff(SHAPES["union"].verify_us[1:])
    assert np.all(np.diff(marginal_us) < 0.0)
    np.testing.assert_allclose(np.diff(SHAPES["affine"].verify_us, 2), 0.0, atol=1e-9)
