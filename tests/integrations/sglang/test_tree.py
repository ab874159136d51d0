"""Depths, parents and cuts of SGLang's flat trees."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.integrations.sglang.tree import best_nodes, depths, parents
from tests.integrations.sglang.drafter import drafting, on_host, trees

TREES = trees()


@given(TREES)
def test_depth_is_the_level_that_drafted_the_node(made):
    plan, drafted = made
    expected = [
        [own[i].depth for i in row]
        for own, row in zip(plan.nodes, drafted.index.tolist(), strict=True)
    ]
    assert depths(drafted.index, drafted.topk).tolist() == expected


@given(TREES)
def test_parent_is_the_place_of_the_node_it_hangs_on(made):
    plan, drafted = made
    for own, row, found in zip(
        plan.nodes, drafted.index.tolist(), drafted.parent.tolist(), strict=True
    ):
        above = [own[i].parent for i in row]
        assert found == [row.index(each) if each >= 0 else -1 for each in above]


@given(TREES, st.integers(0, 10**6))
def test_parents_on_the_host_are_those_on_the_device(made, seed):
    plan, drafted = made
    dice, drafts = Random(seed), range(len(plan.nodes[0]))
    rows = [sorted(dice.sample(drafts, drafted.width - 1)) for _ in plan.nodes]
    any_nodes = plan.chosen(rows)
    for each in (drafted, any_nodes):
        found = parents(*on_host(each)[1:], np)
        assert found.tolist() == each.parent.tolist()


@given(TREES, st.data())
def test_cut_keeps_the_best(made, data):
    _, drafted = made
    width = data.draw(st.integers(2, drafted.width))
    kept = drafted.at(best_nodes(drafted, width))
    assert kept.width == width
    for before, after in zip(drafted.path_prob, kept.path_prob, strict=True):
        best = before.sort(descending=True).values[: width - 1]
        assert torch.equal(after.sort(descending=True).values, best)


@given(TREES)
def test_every_cut_is_closed_under_ancestors(made):
    plan, drafted = made
    assert plan.is_closed(drafted.index)
    for width in range(2, drafted.width + 1):
        assert plan.is_closed(drafted.at(best_nodes(drafted, width)).index)


@given(TREES, st.data())
def test_cut_keeps_nodes_whole(made, data):
    plan, drafted = made
    kept = drafted.at(best_nodes(drafted, data.draw(st.integers(2, drafted.width))))
    assert bool((kept.index.diff(dim=1) > 0).all())
    again = plan.chosen(kept.index.tolist())
    for name in ("parent_list", "tokens", "path_prob", "parent"):
        assert torch.equal(getattr(kept, name), getattr(again, name))


@pytest.mark.parametrize("width", [-1, 0, 9])
def test_other_widths_are_refused(width):
    drafted = drafting(0, 1, 3, 2).drafted(8)
    with pytest.raises(ValueError, match=rf"width {width} is not within 1\.\.8"):
        best_nodes(drafted, width)


def test_a_node_without_its_parent_has_its_own_place():
    plan = drafting(0, 2, 2, 3)
    (first, second), far = plan.expanded[0][1], 2
    orphan = far + 4 + 1
    drafted = plan.chosen([[0, 1, orphan], [0, 1, far]])
    assert orphan // 2 == 3 and first not in (0, 1) and second not in (0, 1)
    assert drafted.parent[:, :2].tolist() == [[-1, -1], [-1, -1]]
    assert drafted.parent[:, 2].tolist() == [2, 0]
