"""What every policy promises an engine, on trees as drafters make them."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    GUIDED,
    RATE,
    RATE_CONDITIONAL,
    RATE_DEPTH,
    RATIO,
    RATIO_RAW,
    Fixed,
    MakePolicy,
    Threshold,
    full_tree,
    guided,
    plain_decoding,
)
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.decision import Objective
from evict_profile.table import ConditionalAcceptance
from evict_profile.traces import Trace


def under_the_root(path_prob: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(path_prob.shape, int), np.full(path_prob.shape, -1)


def makers(table: CostTable) -> dict[str, MakePolicy]:
    return {
        "full tree": lambda: full_tree(24, 4),
        "fixed": lambda: Fixed("fixed", 3, 6),
        "threshold": lambda: Threshold("threshold", 4, 0.1),
        **guided(table, 4),
    }


@pytest.mark.parametrize("name", ["full tree", "fixed", "threshold", *GUIDED])
def test_what_is_kept_is_closed_and_no_padding(
    trace: Trace, arrays: TraceArrays, table: CostTable, name: str
) -> None:
    policy = makers(table)[name]()
    for depth in (1, 4):
        level = arrays.drafted(depth)
        for row in range(0, len(trace.steps) - 2, 7):
            batch = slice(row, row + 3)
            kept = policy.keep(*level.seen(batch), 100.0)
            assert not kept[level.path_prob[batch] == 0.0].any()
            for step, root, mask, places in zip(
                trace.steps[batch], arrays.root[batch], kept, level.expert_row[batch],
                strict=True,
            ):  # fmt: skip
                nodes = set((places[mask] - root - 1).tolist())
                assert {int(step.parent[node]) for node in nodes} <= nodes | {-1}
            policy.observe(3, 5000.0)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12),
    st.integers(1, 14),
)
def test_a_fixed_width_keeps_so_many_of_the_best(
    scores: list[float], width: int
) -> None:
    path_prob = np.array([scores])
    kept = Fixed("", 1, width).keep(path_prob, *under_the_root(path_prob), 0.0)
    assert kept.sum() == min(width - 1, (path_prob > 0.0).sum())
    if kept.any() and not kept.all():
        assert path_prob[kept].min() >= path_prob[~kept].max()


def test_plain_decoding_is_a_width_of_one_at_no_depth() -> None:
    assert (plain_decoding().depth, plain_decoding().width) == (0, 1)


def test_a_threshold_stops_where_no_child_could_reach_it() -> None:
    """Children never score above their parents."""
    policy = Threshold("", 4, 0.3)
    depth, parent = np.array([[1, 1, 2]]), np.array([[-1, -1, 0]])
    assert policy.deeper(np.array([[0.6, 0.3, 0.35]]), depth, parent, 0.0)
    assert not policy.deeper(np.array([[0.6, 0.3, 0.25]]), depth, parent, 0.0)


def test_a_fixed_width_can_rank_by_conditional_acceptance() -> None:
    """A second child counts less by its rank than a deeper best one."""
    conditional = ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0), (0.0, 0.1)))
    path_prob = np.array([[0.5, 0.45, 0.3]])
    where = np.array([[1, 1, 2]]), np.array([[-1, -1, 0]])
    plain, ranked = (Fixed("", 2, 3, each) for each in (None, conditional))
    assert plain.keep(path_prob, *where, 0.0).tolist() == [[True, True, False]]
    assert ranked.keep(path_prob, *where, 0.0).tolist() == [[True, False, True]]


def test_a_policy_may_decode_plainly_and_come_back(table: CostTable) -> None:
    """Steps that promise nothing end drafting for a while, not for ever."""
    policy = guided(table, 4)[RATE_DEPTH]()
    none = np.empty((1, 0))
    poor = np.full((1, 3), 1e-3)
    asked = []
    for _ in range(40):
        drafts = policy.deeper(none, *under_the_root(none), 100.0)
        asked.append(drafts)
        shown = poor if drafts else none
        policy.keep(shown, *under_the_root(shown), 100.0)
        policy.observe(1, 6000.0)
    assert asked[0] and not all(asked)
    assert any(asked[len(asked) // 2 :])


@pytest.mark.parametrize(
    ("name", "objective", "calibration", "conditional"),
    [
        (RATIO_RAW, "ratio", None, False),
        (RATIO, "ratio", "table", False),
        (RATE, "rate", "table", False),
        (RATE_CONDITIONAL, "rate", "table", True),
    ],
)
def test_a_guided_policy_does_what_its_truncator_plans(
    arrays: TraceArrays,
    table: CostTable,
    name: str,
    objective: Objective,
    calibration: Literal["table"] | None,
    conditional: bool,
) -> None:
    own = Truncator(
        table, drafts="topk", acceptance="target-only", objective=objective,
        calibration=calibration, outside="clamp",
    )  # fmt: skip
    policy, trees = guided(table, 4)[name](), arrays.drafted(4)
    for row in range(30):
        seen = trees.seen(slice(row, row + 1))
        path_prob, depth, parent = map(torch.from_numpy, seen)
        above = parent if conditional else None
        plan = own.plan(path_prob, 100.0, depth=depth, parent=above)
        kept = policy.keep(*seen, 100.0)
        assert kept.tolist() == (plan.keep.numpy() & (seen[0] > 0.0)).tolist()
        committed = 1 + int((kept & trees.accepted[row]).sum())
        policy.observe(committed, 6000.0)
        own.observe(plan, committed, 6000.0)


def test_fresh_policies_remember_nothing_of_each_other(
    arrays: TraceArrays, table: CostTable
) -> None:
    make = guided(table, 4)[RATE]
    level = arrays.drafted(4)
    first = make().keep(*level.seen(slice(1)), 100.0)
    taught = make()
    for row in range(20):
        taught.keep(*level.seen(slice(row, row + 1)), 100.0)
        taught.observe(1, 1e6)
    assert make().keep(*level.seen(slice(1)), 100.0).tolist() == (first.tolist())


def test_only_what_a_table_can_tell_is_offered(
    bare_table: CostTable, table: CostTable
) -> None:
    """Raw and calibrated scores are one without calibration, and depth needs clocks."""
    assert tuple(guided(bare_table, 4)) == (RATIO, RATE)
    assert tuple(guided(table, 4)) == GUIDED


def test_only_the_policy_that_chooses_depth_stops_early(
    arrays: TraceArrays, table: CostTable
) -> None:
    hopeless = np.full((1, 4), 0.01)
    policies, where = guided(table, 4), under_the_root(hopeless)
    assert policies[RATE]().deeper(hopeless, *where, 100.0)
    assert not policies[RATE_DEPTH]().deeper(hopeless, *where, 100.0)
