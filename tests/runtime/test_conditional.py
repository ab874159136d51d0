"""Scored by links, a decision is the best over all ancestor-closed sets."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.runtime import ConditionalAcceptance, CostTable, Truncator, decision
from evict_profile.runtime.decision import Terms
from evict_profile.runtime.scoring import ConditionalScorer
from tests.runtime.forests import (
    LINKS,
    RULES,
    TERMS,
    Rule,
    Tree,
    best_total,
    costs,
    forests,
    padded,
    scores_by_hand,
    shuffles,
    with_padding,
)

pytestmark = pytest.mark.usefixtures("loops")

EAGLE = {"drafts": "topk", "acceptance": "target-only"}
HERE = torch.device("cpu")
TWO = ConditionalAcceptance((0.0, 0.5, 1.0), ((0.0, 0.5, 1.0), (0.0, 0.25, 0.25)))


def parents_as_shown(tree, order, padding):
    place = {node: at for at, node in enumerate(order)}
    own = [*tree.parents, *[padding] * (len(order) - len(tree.parents))]
    return [
        place[own[node]] if node < len(tree.parents) and own[node] >= 0 else own[node]
        for node in order
    ]


@settings(max_examples=75)
@given(forests(), LINKS, RULES, TERMS, st.data())
def test_equal_to_brute_force_in_any_order_of_nodes(forest, links, rule, terms, data):
    cost_us = data.draw(costs(forest))
    path_prob = padded(forest).numpy()
    batch, nodes = path_prob.shape
    scored = [Tree(tree.parents, scores_by_hand(links, tree)) for tree in forest]
    total, best = best_total(scored, cost_us, rule, terms)
    orders = [data.draw(shuffles(row.tolist())) for row in path_prob]
    padding = data.draw(st.integers(-3, 9))
    parent = np.array(
        [
            parents_as_shown(tree, order, padding)
            for tree, order in zip(forest, orders, strict=True)
        ],
        int,
    ).reshape(batch, nodes)
    placed = np.array(orders, int).reshape(batch, nodes)
    shown = np.take_along_axis(path_prob, placed, axis=1)
    scores = ConditionalScorer(links).on_cpu(shown, parent)
    sizes = rule.costs(cost_us, batch, nodes)
    keep, widths, k, expected = rule.decide(shown, sizes, terms, scores)
    assert batch + k * rule.pools(batch) == total
    assert Fraction(expected) == best and widths.sum() == total
    back = np.zeros_like(keep)
    np.put_along_axis(back, placed, keep, axis=1)
    for tree, row in zip(forest, back, strict=True):
        assert with_padding(tree, nodes).is_closed(row.tolist())
    there = ConditionalScorer(links).on_device(HERE, levels=6)
    in_tensors = there(torch.from_numpy(shown).double(), torch.from_numpy(parent))
    np.testing.assert_array_equal(in_tensors.numpy(), scores)


@st.composite
def rough_trees(draw):
    """Scores and curves that rounding does touch, with sure and hopeless links."""
    share = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0))
    path: list[float] = []
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(1, 20)))]
    for parent in parents:
        path.append(draw(share) * (path[parent] if parent >= 0 else 1.0))
    rows = st.lists(share, min_size=2, max_size=2).map(lambda r: (0.0, *sorted(r)))
    curves = draw(st.lists(rows, min_size=1, max_size=3))
    links = ConditionalAcceptance(
        (0.0, draw(st.floats(0.01, 0.99)), 1.0), tuple(curves)
    )
    return Tree(tuple(parents), tuple(path)), links


@settings(max_examples=50)
@given(rough_trees())
def test_the_best_are_closed_at_every_width_to_the_last_digit(drawn):
    tree, links = drawn
    path_prob, parent = np.array([tree.path_prob]), np.array([tree.parents])
    scores = ConditionalScorer(links).on_cpu(path_prob, parent)
    own = np.append(scores[0], 1.0)
    assert np.all(own[:-1] <= own[parent[0]])
    there = ConditionalScorer(links).on_device(HERE, levels=20)
    in_tensors = there(torch.from_numpy(path_prob), torch.from_numpy(parent))
    np.testing.assert_array_equal(in_tensors.numpy(), scores)
    for k in range(len(tree.parents) + 1):
        only_k = np.append(np.full(k, 1e9), 1e-3)
        keep, _, kept, _ = Rule().decide(path_prob, only_k, Terms(), scores)
        assert kept == k
        assert tree.is_closed(keep[0].tolist())


def test_what_the_root_does_not_reach_scores_nothing():
    circle = ConditionalScorer(TWO).on_cpu(np.full((1, 2), 0.5), np.array([[1, 0]]))
    assert circle.tolist() == [[0.0, 0.0]]
    chain = torch.full((1, 3), 1.0), torch.tensor([[-1, 0, 1]])
    assert ConditionalScorer(TWO).on_device(HERE, levels=2)(*chain).tolist() == [
        [1.0, 1.0, 0.0]
    ]


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.1])
def test_what_is_no_probability_is_refused_before_it_is_followed(bad):
    path_prob, parent = np.array([[0.5, bad]]), np.array([[-1, 0]])
    scorer = ConditionalScorer(TWO)
    scores, shape = np.empty((1, 2)), (1, 2, len(scorer.curves) // 2)
    decision.kernels.score_by_parent(path_prob, parent, scorer.curves, scores, *shape)
    with pytest.raises(ConfigError, match="path_prob holds a value that is NaN"):
        scorer.on_cpu(path_prob, parent)


@pytest.mark.parametrize("wrong", [-2, 2])
def test_a_parent_outside_the_row_is_refused(wrong):
    path_prob, parent = np.array([[0.5, 0.5]]), np.array([[-1, wrong]])
    with pytest.raises(ConfigError, match=r"outside 0\.\.1; give the index"):
        ConditionalScorer(TWO).on_cpu(path_prob, parent)
    assert ConditionalScorer(TWO).on_cpu(path_prob * [1.0, 0.0], parent)[0, 1] == 0.0


@pytest.fixture
def table(workload_table):
    return CostTable.load(workload_table)


TREE = torch.tensor([[0.9, 0.8, 0.05, 0.02]])
PARENT = torch.tensor([[-1, 0, -1, 0]])
DEPTH = torch.tensor([[1, 2, 1, 2]])


def test_with_parents_a_plan_is_scored_by_links(table):
    plan = Truncator(table, **EAGLE).plan(TREE, 64, parent=PARENT)
    scorer = ConditionalScorer(table.acceptance.conditional)
    scores = scorer.on_cpu(TREE.numpy(), PARENT.numpy())
    assert plan.expected_accepted == pytest.approx(scores[plan.keep.numpy()].sum())
    assert plan.caveats == ()


def test_without_links_or_parents_all_is_as_it_was(table):
    bare = replace(table, acceptance=replace(table.acceptance, conditional=None))
    ways = ((table, None), (bare, PARENT), (bare, None))
    plans = [
        Truncator(own, **EAGLE).plan(TREE, 64, depth=DEPTH, parent=parent)
        for own, parent in ways
    ]
    assert len({plan.expected_accepted for plan in plans}) == 1
    believed = Truncator(table, calibration=None, **EAGLE).plan(TREE, 64, parent=PARENT)
    assert believed.expected_accepted == pytest.approx(float(TREE[believed.keep].sum()))


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"parent": [[-1, 0, -1, 0]]}, "parent is a list; give a tensor"),
        ({"parent": PARENT[:, :3]}, "one parent a node"),
        ({"parent": PARENT.float()}, "whole numbers"),
        ({"parent": PARENT + 9}, r"outside 0\.\.3"),
        ({"depth": [[1] * 4]}, "give a tensor"),
        ({"depth": DEPTH[:, :3]}, "one depth a node"),
        ({"depth": DEPTH.float()}, "whole numbers"),
    ],
)
def test_what_are_no_parents_or_depths_is_refused(table, known, says):
    with pytest.raises(ConfigError, match=says):
        Truncator(table, **EAGLE).plan(TREE, 64, **known)


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.1])
def test_what_is_no_probability_is_refused_by_links_and_depths_too(table, bad):
    """A share would hide it, and so would a calibration."""
    tree = TREE.clone()
    tree[0, 1] = bad
    for known in ({"parent": PARENT}, {"depth": DEPTH}):
        with pytest.raises(ConfigError, match=r"NaN or outside \[0, 1\]"):
            Truncator(table, **EAGLE).plan(tree, 64, **known)
