"""A trace laid out shows what the trace shows."""

import numpy as np
import pytest

from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.traces import Reply
from tests.traces.steps import make_steps, steps_of
from tests.traces.synthetic import ABOUT, Plan, make_trace


@pytest.fixture(scope="module")
def steps(trace):
    return list(steps_of(trace))


@pytest.mark.parametrize("most", [24, 5])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_level_is_what_is_among_the_best_when_drafting_ends_there(
    trace, steps, depth, most
):
    trace = replace(trace, about=replace(ABOUT, nodes=most))
    level = TraceArrays(trace).levels[depth - 1]
    first = np.cumsum(trace.size) - trace.size
    for step, nodes, start in zip(steps, level.node, first, strict=True):
        best = step.best(most + 1, depth)
        shown = sorted((nodes[nodes >= 0] - start).tolist())
        assert shown == sorted(best[step.depth[best] == depth].tolist())


def test_path_probabilities_are_the_products_of_a_levels_own(trace, arrays):
    """Siblings best first, families in the order of their first nodes."""
    above = np.ones((len(trace), 1))
    for level in arrays.levels:
        assert np.all(np.diff(level.prob, axis=2) <= 1e-12)
        if level.parent is not None:
            above = np.take_along_axis(above, level.parent, axis=1)
        above = (above[..., None] * level.prob).reshape(len(trace), -1)
        told = np.where(level.node >= 0, trace.nodes.path_prob[level.node], 0.0)
        np.testing.assert_allclose(above, told)
        count = level.prob.shape[2]
        node = level.node.reshape(len(trace), -1, count)
        first = np.where(node >= 0, node, len(trace.nodes)).min(axis=2)
        assert np.all((np.diff(first, axis=1) > 0) | (first[:, 1:] == len(trace.nodes)))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_drafted_trees_are_their_levels(trace, arrays, steps, depth):
    trees, first = arrays.drafted(depth), np.cumsum(trace.size) - trace.size
    for row, step in enumerate(steps):
        levels = (level.node[row] for level in arrays.levels[:depth])
        nodes = np.concatenate([np.empty(0, int), *levels])
        own = np.where(nodes >= 0, nodes - first[row], -1)
        accepted = trees.accepted[row]
        assert accepted.tolist() == [n >= 0 and bool(step.accepted[n]) for n in own]
        assert (trees.expert_row[row] == arrays.root[row] + 1 + own).all()


@pytest.mark.parametrize("experts", [16, 64, 100])
def test_unions_are_those_of_the_steps(experts):
    """Also where experts fill more than one word of bits."""
    about = replace(ABOUT, experts=experts)
    trace = make_trace(Plan(prompts=1, tokens=8, about=about))
    arrays = TraceArrays(trace)
    for row, step in enumerate(steps_of(trace)):
        shown = arrays.levels[0].node[row]
        best = shown[shown >= 0] - (np.cumsum(trace.size) - trace.size)[row]
        places = np.append(arrays.root[row], arrays.drafted(1).expert_row[row])
        assert arrays.union(places) == pytest.approx(step.union(best))


def test_padding_ranks_behind_every_node():
    """A width beyond a tree's nodes keeps those, and nothing else."""
    trees = (([-1, -1, 0], [0.5, 0.3, 0.2], [False] * 3), ([-1], [0.5], [False]))
    ranks = TraceArrays(make_steps([Reply("code", 0)], trees)).ranks(2, None)
    assert (ranks < 3).sum(axis=1).tolist() == [3, 1]


def test_steps_lead_to_the_tree_where_the_tokens_end(trace, arrays):
    """Depth and nodes are found where nobody said them."""
    first, last = int(arrays.first[1]), int(arrays.end[1]) - 1
    rows = np.array([first, last, last - 1, last - 1])
    ahead = arrays.next_rows(rows, np.array([3, 1, 1, 2]))
    assert ahead.tolist() == [first + 3, -1, last, -1]
    found = TraceArrays(replace(trace, about=replace(trace.about, depth=0, nodes=0)))
    assert (found.depth, found.nodes) == (4, trace.size.max())
