"""A trace laid out says what the trace says."""

import numpy as np
import pytest

from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from tests.traces.synthetic import ABOUT, Plan, make_trace


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_level_holds_what_is_among_the_best_when_drafting_ends_there(
    trace, arrays, depth
):
    level = arrays.levels[depth - 1]
    for step, nodes in zip(trace.steps, level.node, strict=True):
        best = step.best(ABOUT.nodes + 1, depth)
        shown = sorted(nodes[nodes >= 0].tolist())
        assert shown == sorted(best[step.depth[best] == depth].tolist())


def test_families_tell_path_probabilities(trace, arrays):
    """Each node's is its parent's times its own given the parent, best first."""
    for row, step in enumerate(trace.steps):
        above = np.ones(1)
        for level in arrays.levels:
            prob, nodes = level.prob[row], level.node[row]
            assert np.all(np.diff(prob, axis=1) <= 1e-12)
            places = [0] if level.parent is None else level.parent[row]
            above = (above[places][:, None] * prob).ravel()
            np.testing.assert_allclose(
                above, np.where(nodes >= 0, step.path_prob[nodes], 0.0)
            )


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_drafted_trees_are_their_levels(trace, arrays, depth):
    trees = arrays.drafted(depth)
    for row, step in enumerate(trace.steps):
        levels = (level.node[row] for level in arrays.levels[:depth])
        nodes = np.concatenate([np.empty(0, int), *levels])
        accepted = trees.accepted[row]
        assert accepted.tolist() == [n >= 0 and bool(step.accepted[n]) for n in nodes]
        assert (trees.expert_row[row] == arrays.root[row] + 1 + nodes).all()


@pytest.mark.parametrize("experts", [16, 64, 100])
def test_unions_are_those_of_the_steps(experts):
    """Also where experts fill more than one word of bits."""
    about = replace(ABOUT, experts=experts)
    trace = make_trace(Plan(prompts=1, tokens=8, about=about))
    arrays = TraceArrays(trace)
    for row, step in enumerate(trace.steps):
        nodes = arrays.levels[0].node[row]
        best = nodes[nodes >= 0]
        places = np.append(arrays.root[row], arrays.drafted(1).expert_row[row])
        assert arrays.union(places) == pytest.approx(step.union(best))


def test_steps_lead_to_the_tree_where_the_tokens_end(arrays):
    first, last = int(arrays.first[1]), int(arrays.end[1]) - 1
    rows = np.array([first, last, last - 1, last - 1])
    ahead = arrays.next_rows(rows, np.array([3, 1, 1, 2]))
    assert ahead.tolist() == [first + 3, -1, last, -1]


def test_prompts_of_two_workloads_are_different_prompts(arrays):
    assert len(arrays.prompts) == len(set(arrays.prompts)) == 10
    assert len(set(arrays.prompt.tolist())) == 10


def test_depth_and_nodes_are_found_out_where_nobody_said(trace):
    unsaid = replace(trace, about=replace(trace.about, depth=0, nodes=0))
    found = TraceArrays(unsaid)
    assert found.depth == 4
    assert found.nodes == max(len(step.parent) for step in trace.steps)
