"""Calibrated by depth, a decision is the best over all ancestor-closed sets."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.runtime import Calibration, decision_cpu, decision_gpu
from evict_profile.runtime.decision import Rule, Terms, reachable_costs
from tests.runtime.forests import (
    CALIBRATIONS,
    RULES,
    TERMS,
    Tree,
    best_total,
    costs,
    forests,
    padded,
    shuffles,
    with_padding,
)

pytestmark = pytest.mark.usefixtures("loops")


def worthwhile(tree, calibration):
    """The tree with what its nodes are worth in place of their scores."""
    worth = calibration.on_cpu(np.array(tree.path_prob))
    return Tree(tree.parents, tuple(worth.tolist()))


@settings(max_examples=75)
@given(forests(), CALIBRATIONS, RULES, TERMS, st.data())
def test_equal_to_brute_force_in_any_order_of_nodes(
    forest, calibration, rule, terms, data
):
    """The smallest optimum, closed under ancestors, and the same in tensors."""
    cost_us = data.draw(costs(forest))
    path_prob = padded(forest).numpy()
    nodes = path_prob.shape[1]
    worth = [worthwhile(tree, calibration) for tree in forest]
    total, claimed_best = best_total(worth, cost_us, rule, terms)
    orders = np.array([data.draw(shuffles(row.tolist())) for row in path_prob], int)
    orders = orders.reshape(path_prob.shape)
    shown = np.take_along_axis(path_prob, orders, axis=1)
    sizes = reachable_costs(np.array(cost_us, float), *shown.shape, rule, None)
    keep, _, k, claimed = decision_cpu.decide(
        shown, sizes, rule, terms, calibration.on_cpu(shown)
    )
    assert len(forest) + k * rule.pools(len(forest)) == total
    assert Fraction(claimed) == claimed_best
    back = np.zeros_like(keep)
    np.put_along_axis(back, orders, keep, axis=1)
    for tree, own, row in zip(forest, worth, back, strict=True):
        assert with_padding(tree, nodes).is_closed(row.tolist())
        kept = np.array(with_padding(own, nodes).path_prob)[row]
        claimed_best -= sum(map(Fraction, kept.tolist()), Fraction())
    assert claimed_best == 0
    there = in_tensors(shown, sizes, rule, terms, calibration)
    assert there.keep.numpy().tolist() == keep.tolist()
    assert float(there.claimed) == claimed


def in_tensors(path_prob, sizes, rule, terms, calibration):
    """The tensor operations' decision, on the CPU."""
    here = torch.device("cpu")
    return decision_gpu.decide(
        torch.from_numpy(path_prob),
        torch.from_numpy(sizes),
        rule,
        decision_gpu.on_its_device(terms, here),
        calibration.on_device(here),
    )


def test_a_plateau_ties_a_child_with_a_parent_that_stands_behind_it():
    """The more probable is kept, although it comes later."""
    flat = Calibration((0.0, 0.25, 0.5, 1.0), (0.0, 0.5, 0.5, 0.5))
    path_prob = np.array([[0.3, 0.4]])
    sizes = np.array([4.0, 4.5, 9.0])
    keep, _, k, _ = decision_cpu.decide(
        path_prob, sizes, Rule(), Terms(), flat.on_cpu(path_prob)
    )
    assert (k, keep.tolist()) == (1, [[False, True]])
