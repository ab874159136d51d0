"""A trace laid out says what the trace says."""

import numpy as np
import pytest

from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.traces import Trace
from tests.traces.synthetic import ABOUT, Plan, make_trace


@pytest.mark.parametrize("depth", [0, 1, 3, 4])
def test_levels_hold_the_best_nodes_of_each_depth(
    trace: Trace, arrays: TraceArrays, depth: int
) -> None:
    level = arrays.drafted(depth)
    for row, step in enumerate(trace.steps):
        best = step.best(ABOUT.nodes + 1, depth)
        assert (
            level.path_prob[row, : len(best)].tolist() == step.path_prob[best].tolist()
        )
        assert level.accepted[row].sum() == step.accepted[best].sum()
        assert not level.path_prob[row, len(best) :].any()
        assert not level.depth[row, len(best) :].any()


@pytest.mark.parametrize("experts", [16, 64, 100])
def test_unions_are_those_of_the_steps(experts: int) -> None:
    """Also where experts fill more than one word of bits."""
    about = replace(ABOUT, experts=experts)
    trace = make_trace(Plan(prompts=1, tokens=8, about=about))
    arrays = TraceArrays(trace)
    level = arrays.drafted(3)
    for row, step in enumerate(trace.steps):
        best = step.best(6, 3)
        places = np.append(arrays.root[row], level.expert_row[row, : len(best)])
        assert arrays.union(places) == pytest.approx(step.union(best))


def test_padding_stands_for_the_root(trace: Trace, arrays: TraceArrays) -> None:
    level = arrays.drafted(0)
    assert not level.path_prob.any()
    assert (level.expert_row == arrays.root[:, None]).all()


def test_steps_lead_to_the_tree_where_the_tokens_end(arrays: TraceArrays) -> None:
    first, last = int(arrays.first[1]), int(arrays.end[1]) - 1
    rows = np.array([first, last, last - 1, last - 1])
    ahead = arrays.next_rows(rows, np.array([3, 1, 1, 2]))
    assert ahead.tolist() == [first + 3, -1, last, -1]


def test_prompts_of_two_workloads_are_different_prompts(arrays: TraceArrays) -> None:
    assert len(arrays.prompts) == len(set(arrays.prompts)) == 10
    assert len(set(arrays.prompt.tolist())) == 10


def test_depth_and_nodes_are_found_out_where_nobody_said(trace: Trace) -> None:
    unsaid = replace(trace, about=replace(trace.about, depth=0, nodes=0))
    found = TraceArrays(unsaid)
    assert found.depth == 4
    assert found.nodes == max(len(step.parent) for step in trace.steps)
