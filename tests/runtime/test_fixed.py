"""A fixed width and depth: the nodes worth most, and no cost."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import PlanError
from evict_profile.runtime import Calibration, ConditionalAcceptance, Truncator
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
def test_of_each_request_those_worth_most_are_kept(width, seed):
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
    for worth, keep in zip(step.worth, plan.keep.numpy(), strict=True):
        assert keep.sum() == kept
        assert worth[keep].min(initial=1.0) >= worth[~keep].max(initial=0.0)
    above = np.concatenate([np.full((2, 2), -1), np.repeat(parent, 2, axis=1)], axis=1)
    path = np.take_along_axis(first[:, 0], parent, axis=1)[:, :, None] * more
    path_prob = np.concatenate([first[:, 0], path.reshape(2, 4)], axis=1)
    whole = fixed(width).plan(
        torch.from_numpy(path_prob), 0, parent=torch.from_numpy(above)
    )
    np.testing.assert_allclose(
        step.worth, ConditionalScorer(CURVES).on_cpu(path_prob, above)
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
    assert {plan.trust for plan in plans} == {1.0}
    assert plans[0].includes == () and math.isnan(plans[0].step_cost_us)
    with pytest.raises(PlanError, match=r"committed_tokens 4 is not within 1\.\.3"):
        truncator.observe(plans[0], 4)


def test_a_tables_acceptance_ranks_if_a_table_is_given(workload_table):
    from evict_profile.runtime import CostTable

    table = CostTable.load(workload_table)
    own = Truncator(table, objective="fixed", width=3, depth=1, **EAGLE)
    bare = Truncator(objective="fixed", width=3, depth=1, **EAGLE)
    levels = [truncator.begin(1, 64) for truncator in (own, bare)]
    for step in levels:
        step.extend(np.array([[[0.5, 0.4]]]))
    assert levels[1].worth.tolist() == [[0.5, 0.4]] != levels[0].worth.tolist()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"objective": "fixed", "depth": 2}, "width None is no number"),
        ({"objective": "fixed", "width": 3}, "depth None is no number"),
        ({"objective": "fixed", "width": 2.5, "depth": 2}, "must be a whole number"),
        ({"objective": "fixed", "width": 0, "depth": 2}, "at least 1"),
        ({"objective": "rate"}, "needs a table and decides width and depth"),
        ({"objective": "best", "width": 2}, "is not one of ratio, rate, fixed"),
    ],
)
def test_what_is_no_fixed_width_is_refused(words, says):
    with pytest.raises(PlanError, match=says):
        Truncator(**words, **EAGLE)


def test_a_width_beside_a_deciding_objective_is_refused(workload_table):
    from evict_profile.runtime import CostTable

    table = CostTable.load(workload_table)
    with pytest.raises(PlanError, match="objective='fixed' with both"):
        Truncator(table, width=4, depth=2, **EAGLE)


def test_it_is_refused_where_cutting_by_own_scores_is_not_lossless():
    with pytest.raises(PlanError, match="would change what the model says"):
        Truncator(
            objective="fixed",
            width=3,
            depth=2,
            drafts="sampled",
            acceptance="rejection",
        )
