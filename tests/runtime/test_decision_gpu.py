"""Tensor operations that a CUDA graph can hold: no value is read, no shape depends."""

from functools import partial

import pytest
import torch

from evict_profile.runtime import Calibration, ConditionalAcceptance, decision_gpu
from evict_profile.runtime.conditional import ConditionalScorer
from evict_profile.runtime.decision import ALLOCATIONS, OBJECTIVES, Rule, Terms
from evict_profile.runtime.decision_gpu import CapturedDecision

META = torch.device("meta")
HALF = Calibration((0.0, 1.0), (0.0, 0.5))


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_host_reads_no_value(objective, allocation):
    """Tensors without data go through; reading one would raise."""
    path_prob = torch.zeros(3, 9, device=META)
    sizes = 28 if allocation == "batch" else 10
    costs = torch.ones(sizes, dtype=torch.float64, device=META)
    terms = decision_gpu.on_its_device(Terms(), META)
    rule = Rule(objective, allocation)
    for calibrate in (None, HALF.on_device(META)):
        made = decision_gpu.decide(path_prob, costs, rule, terms, calibrate)
        assert made.widths.shape == (3,)
        assert made.keep.shape == (3, 9)
        assert all(tensor.device == META for tensor in made)
    with pytest.raises(RuntimeError, match="meta"):
        float(made.step_cost_us)


def test_depths_are_read_on_the_device_alone():
    """For the time of the deepest level."""
    path_prob = torch.zeros(3, 9, device=META)
    depth = torch.zeros(3, 9, dtype=torch.int64, device=META)
    beside_us = torch.ones(4, dtype=torch.float64, device=META)
    costs = torch.ones(28, dtype=torch.float64, device=META)
    terms = decision_gpu.on_its_device(Terms(), META)
    beside = decision_gpu.BesideByLevel(depth, beside_us)
    worth_of = HALF.on_device(META)
    made = decision_gpu.decide(path_prob, costs, Rule(), terms, worth_of, beside)
    assert made.keep.shape == (3, 9)
    assert made.step_cost_us.shape == ()


def test_links_are_followed_on_the_device_alone():
    """Level by level, as many as a table has clocked."""
    path_prob = torch.zeros(3, 9, device=META)
    parent = torch.zeros(3, 9, dtype=torch.int64, device=META)
    costs = torch.ones(28, dtype=torch.float64, device=META)
    terms = decision_gpu.on_its_device(Terms(), META)
    links = ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0), (0.0, 0.5)))
    worth_of = partial(
        ConditionalScorer(links).on_device(META, levels=4), parent=parent
    )
    made = decision_gpu.decide(path_prob, costs, Rule(), terms, worth_of)
    assert made.keep.shape == (3, 9)
    assert made.claimed.shape == ()


def test_a_captured_decision_reads_none_either():
    """Neither pricing nor running it waits for the device."""
    captured = CapturedDecision(torch.zeros(2, 5, device=META), 11, Rule())
    captured.price(torch.ones(11, dtype=torch.float64, device=META), Terms(us=3.0))
    captured.run()
    assert captured.decision.widths.shape == (2,)


def test_terms_keep_their_order():
    """Kernels read them by place."""
    terms = decision_gpu.on_its_device(Terms(1.0, 2.0, 3.0, 4.0), torch.device("cpu"))
    assert terms.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert Terms.__struct_fields__ == ("trust", "tokens", "us", "rate")
