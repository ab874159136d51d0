"""The Triton kernels, run by its interpreter, decide as the tensor operations do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.runtime import Calibration, on_device
from evict_profile.runtime.decision import Rule, Terms, reachable_costs
from tests.runtime.forests import RULES, TERMS, costs, forests, padded

pytest.importorskip("triton", reason="triton is not installed, so no kernel can run")
from evict_profile.runtime import fused


def same(path_prob, sizes, rule, terms, calibrate=None):
    """Both paths' decisions are equal in every field."""
    price = torch.from_numpy(sizes)
    worth = on_device.on_its_device(terms, path_prob.device)
    ours = fused.decide(path_prob, price, rule, worth, calibrate)
    theirs = on_device.decide(path_prob, price, rule, worth, calibrate)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=0.0)


@settings(max_examples=60, deadline=None)
@given(forests(), RULES, TERMS, st.data())
def test_equal_on_every_small_forest(forest, rule, terms, data):
    """Ties, zeros and single nodes included."""
    path_prob = padded(forest)
    if path_prob.shape[1]:
        price = np.array(data.draw(costs(forest)), dtype=np.float64)
        sizes = reachable_costs(price, *path_prob.shape, rule, None)
        same(path_prob, sizes, rule, terms)


@pytest.mark.parametrize("shape", [(1, 16), (3, 300), (5, 60)])
@pytest.mark.parametrize("allocation", ["batch", "uniform"])
@pytest.mark.parametrize("objective", ["ratio", "rate"])
def test_equal_over_several_blocks(shape, allocation, objective):
    """Pools larger than what one program compares at a time, with many ties."""
    generator = torch.Generator().manual_seed(1)
    path_prob = torch.randint(0, 9, shape, generator=generator) / 8.0
    tokens = np.arange(shape[0] * (shape[1] + 1) + 1)
    rule, terms = Rule(objective, allocation), Terms(0.9, 3.0, 40.0, 0.05)
    sizes = reachable_costs(100.0 + tokens + tokens**1.5, *shape, rule, None)
    same(path_prob, sizes, rule, terms)
    same(path_prob, sizes[: len(sizes) // 2], rule, terms)


def test_gains_are_calibrated():
    """The order is the path probability's, the worth is the calibrated one."""
    calibration = Calibration((0.0, 0.5, 1.0), (0.0, 0.1, 0.9))
    path_prob = torch.rand(2, 40, generator=torch.Generator().manual_seed(2))
    sizes = 50.0 + np.arange(81.0)
    calibrate = calibration.on_device(path_prob.device)
    same(path_prob, sizes, Rule(), Terms(), calibrate)


@pytest.mark.parametrize("bad", [float("nan"), -0.5, 2.0])
def test_what_is_no_probability_keeps_all(bad):
    """And raises the flag."""
    path_prob = torch.full((2, 40), 0.5)
    path_prob[1, 37] = bad
    sizes = 50.0 + np.arange(81.0)
    terms = on_device.on_its_device(Terms(), path_prob.device)
    made = fused.decide(path_prob, torch.from_numpy(sizes), Rule(), terms, None)
    assert bool(made.refused)
    assert made.widths.tolist() == [41, 41]
