"""A fixed width and depth: the nodes of the highest scores, and no cost."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.runtime import (
    Calibration,
    ConditionalAcceptance,
    CostTable,
    Truncator,
)
from evict_profile.runtime.scoring import ConditionalScorer

EAGLE: dict[str, Any] = {"drafts": "topk", "acceptance": "target-only"}
CURVES = ConditionalAcceptance((0.0, 0.5, 1.0), ((0.0, 0.8, 1.0), (0.0, 0.2, 0.3)))


def fixed(width, depth=2):
    return Truncator(
        objective="fixed",
        width=width,
        depth=depth,
        calibration=Calibration.by(CURVES),
        **EAGLE,
    )


@given(st.integers(1, 9), st.integers(0, 2**16))
def test_the_best_nodes_of_each_request_are_kept(width, seed):
    """Level by level as all at once; never more than there are."""
    rng = np.random.default_rng(seed)
    first = np.sort(rng.random((2, 1, 2)))[:, :, ::-1]
    more = np.sort(rng.random((2, 2, 2)))[:, :, ::-1]
    parent = np.array([[0, 1], [1, 0]])
    step = fixed(width).begin(2, context=0)
    asked = []
    for level in ((first, None), (more, parent)):
        asked.append(step.deeper())
        step.extend(*level)
    assert [*asked, step.deeper()] == [True, True, False]
    plan = step.plan()
    kept = min(width - 1, 6)
    assert plan.widths.tolist() == [kept + 1] * 2
    for scores, keep in zip(step.scores, plan.keep.numpy(), strict=True):
        assert keep.sum() == kept
        assert scores[keep].min(initial=1.0) >= scores[~keep].max(initial=0.0)
    above = np.concatenate([np.full((2, 2), -1), np.repeat(parent, 2, axis=1)], axis=1)
    path = np.take_along_axis(first[:, 0], parent, axis=1)[:, :, None] * more
    path_prob = np.concatenate([first[:, 0], path.reshape(2, 4)], axis=1)
    whole = fixed(width).plan(
        torch.from_numpy(path_prob), 0, parent=torch.from_numpy(above)
    )
    np.testing.assert_allclose(
        step.scores, ConditionalScorer(CURVES).on_cpu(path_prob, above)
    )
    assert whole.keep.tolist() == plan.keep.tolist()


def test_nothing_is_covered_and_nothing_is_learnt():
    """Whatever became of the steps before; a plan says so."""
    truncator = fixed(3)
    tree = torch.tensor([[0.9, 0.5, 0.2]])
    plans = []
    for committed in (1, 3, 1):
        plans.append(truncator.plan(tree, 0))
        truncator.observe(plans[-1], committed)
    assert {plan.tokens for plan in plans} == {3}
    assert {plan.acceptance_ratio for plan in plans} == {1.0}
    assert plans[0].includes == () and math.isnan(plans[0].step_cost_us)
    with pytest.raises(ConfigError, match=r"committed_tokens 4 is not within 1\.\.3"):
        truncator.observe(plans[0], 4)


def test_a_tables_acceptance_ranks_if_a_table_is_given(workload_table):
    table = CostTable.load(workload_table)
    own = Truncator(table, objective="fixed", width=3, depth=1, **EAGLE)
    bare = Truncator(objective="fixed", width=3, depth=1, **EAGLE)
    levels = [truncator.begin(1, 64) for truncator in (own, bare)]
    for step in levels:
        step.extend(np.array([[[0.5, 0.4]]]))
    assert levels[1].scores.tolist() == [[0.5, 0.4]] != levels[0].scores.tolist()
