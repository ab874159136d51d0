"""SGLang's own kernels on cut trees, and their stubs on a CPU.

Triton's interpreter runs the kernels that a GPU would; what they should do is written
out again here, node by node.
"""

import importlib
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.integrations.sglang.tree import cut
from tests.sglang.drafting import Shape, cut_trees, drafted, parents

FULL_MASK, QLEN_ONLY = 0, 1
few = settings(max_examples=25)


@pytest.fixture(scope="module")
def trees():
    """SGLang's kernels for draft trees."""
    return importlib.import_module("sglang.kernels.ops.speculative.spec_tree")


@pytest.fixture(scope="module")
def stubs():
    """The stubs of SGLang's compiled kernels."""
    return importlib.import_module("sgl_kernel")


def lengths(shape):
    """Some length of each request's prefix."""
    return torch.arange(shape.requests) * 3 + 5


def blank(shape, mask_mode):
    """The results that a tree is written into, as SGLang makes them."""
    b, n = shape.requests, shape.width
    prefix = int(lengths(shape).sum()) * n if mask_mode == FULL_MASK else 0
    return {
        "mask": torch.full((prefix + b * n * n,), True),
        "positions": torch.zeros(b * n, dtype=torch.int64),
        "index": torch.full((b, n), -1),
        "child": torch.full((b, n), -1),
        "sibling": torch.full((b, n), -1),
    }


def built(trees, shape, tree, mask_mode):
    """A batch's trees, by SGLang's Triton kernel."""
    results, seen = blank(shape, mask_mode), lengths(shape)
    trees.sgl_build_tree_kernel_efficient_triton[(shape.requests,)](
        tree.parent_list,
        tree.index,
        seen,
        torch.cumsum(seen, dim=0) - seen,
        *results.values(),
        topk=shape.topk,
        depth=shape.steps,
        draft_token_num=shape.width,
        tree_mask_mode=mask_mode,
        batch_size=shape.requests,
        parent_list_stride=tree.parent_list.stride(0),
        selected_index_stride=tree.index.stride(0),
    )
    return results


def expected(shape, tree, mask_mode):
    """The same, node by node."""
    results, at = blank(shape, mask_mode), 0
    b, n = shape.requests, shape.width
    results["index"] = torch.arange(b * n).view(b, n)
    for row, prefix in enumerate(lengths(shape).tolist()):
        above = parents(tree, row)
        for node in range(n):
            path = ancestors(above, node)
            results["positions"][row * n + node] = prefix + len(path) - 1
            at += prefix if mask_mode == FULL_MASK else 0
            results["mask"][at : at + n] = torch.isin(
                torch.arange(n), torch.tensor(path)
            )
            at += n
            below = [other for other in range(n) if above[other] == node]
            if below:
                results["child"][row, node] = below[0]
            for one, other in pairwise(below):
                results["sibling"][row, one] = other
    return results


def ancestors(above, node):
    """A node, its parent, and so on up to the root."""
    return [node] if node == 0 else [node, *ancestors(above, above[node])]


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mask_mode", [FULL_MASK, QLEN_ONLY])
@few
@given(cut_trees())
def test_triton_builds_cut_trees(trees, mask_mode, given_tree):
    shape, tree = given_tree
    assert equal(built(trees, shape, tree, mask_mode), expected(shape, tree, mask_mode))


@few
@given(cut_trees())
def test_stub_builds_cut_trees(stubs, given_tree):
    shape, tree = given_tree
    results = blank(shape, QLEN_ONLY)
    stubs.build_tree_kernel_efficient_cpu(
        tree.parent_list,
        tree.index,
        lengths(shape),
        *results.values(),
        shape.topk,
        shape.steps,
        shape.width,
        QLEN_ONLY,
    )
    assert equal(results, expected(shape, tree, QLEN_ONLY))


@few
@given(st.integers(0, 2**20), st.integers(2, 11))
def test_cut_keeps_parents_that_tie(seed, width):
    """With probabilities of 1.0, a child is as probable as its parent.

    All that was drafted is the whole tree here: SGLang's own choice of nodes, which a
    cut starts from, is by `torch.topk` and may leave such a parent out.
    """
    shape = Shape(requests=2, topk=2, steps=3, width=11)
    tree = cut(drafted(shape, seed, certain=True), width)
    assert all(len(parents(tree, row)) == width for row in range(shape.requests))


def said(shape, tree, results, seed):
    """Drafted tokens with their root, and what the target says: few tokens, so that
    they often agree."""
    dice = torch.Generator().manual_seed(seed)
    roots = torch.zeros(shape.requests, 1, dtype=torch.int64)
    target = torch.randint(0, 3, (shape.requests, shape.width), generator=dice)
    return torch.cat([roots, tree.tokens % 3], dim=1), target


def unverified(shape):
    """The results of a verification, as SGLang makes them."""
    b = shape.requests
    return {
        "predicts": torch.zeros(b * shape.width, dtype=torch.int32),
        "accept_index": torch.full((b, shape.levels + 1), -1, dtype=torch.int32),
        "accept_token_num": torch.zeros(b, dtype=torch.int32),
    }


def accepted(shape, tree, tokens, target):
    """The path that the target's own tokens take, request by request."""
    results, n = unverified(shape), shape.width
    for row in range(shape.requests):
        above, path = parents(tree, row), [0]
        while True:
            wanted = target[row, path[-1]]
            below = [node for node in range(n) if above[node] == path[-1]]
            fits = [node for node in below if tokens[row, node] == wanted]
            if not fits:
                break
            path.append(fits[0])
        for place, node in enumerate(path):
            results["accept_index"][row, place] = row * n + node
            results["predicts"][row * n + node] = target[row, node]
        results["accept_token_num"][row] = len(path) - 1
    return results


@pytest.mark.parametrize("by", ["triton", "stub"])
@few
@given(cut_trees(), st.integers(0, 2**20))
def test_verifies_cut_trees_greedily(trees, stubs, by, given_tree, seed):
    shape, tree = given_tree
    links = expected(shape, tree, QLEN_ONLY)
    tokens, target = said(shape, tree, links, seed)
    results = unverified(shape)
    rest: tuple[Any, ...] = (
        *results.values(),
        tokens,
        links["index"],
        links["child"],
        links["sibling"],
    )
    if by == "triton":
        trees.verify_tree_greedy_kernel_triton[(shape.requests,)](
            *rest,
            target,
            batch_size=shape.requests,
            num_speculative_tokens=shape.levels + 1,
            num_draft_tokens=shape.width,
        )
    else:
        stubs.verify_tree_greedy_cpu(*rest, target)
    assert equal(results, accepted(shape, tree, tokens, target))


def test_every_accept_length_is_tried(trees):
    """The greedy test's targets agree with drafts often enough to mean something."""
    shape, seen = Shape(requests=3, topk=3, steps=3, width=10), set()
    for seed in range(40):
        tree = drafted(shape, seed, certain=False)
        tokens, target = said(shape, tree, {}, seed)
        seen |= set(accepted(shape, tree, tokens, target)["accept_token_num"].tolist())
    assert seen == {0, 1, 2, 3}
