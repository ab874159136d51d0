"""SGLang's own kernels on cut trees, and their stubs on a CPU.

Triton's interpreter runs the kernels that a GPU would; what they should do is written
out again here, node by node.
"""

import importlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.integrations.sglang.tree import best_nodes
from tests.integrations.sglang.drafter import drafting, organized, trees

FULL_MASK, QLEN_ONLY = 0, 1
few = settings(max_examples=25)


@dataclass(frozen=True)
class Cut:
    """A batch of cut trees; the drafted steps stay the stride of a list of parents."""

    tree: Any
    steps: int

    @property
    def requests(self):
        return len(self.tree.index)

    @property
    def width(self):
        return self.tree.width

    @property
    def levels(self):
        return min(self.steps, self.width - 1)

    @property
    def lengths(self):
        return torch.arange(self.requests) * 3 + 5

    def parents(self, row):
        """The parent of each node; node 0 is the root, -1 is none."""
        return [-1, *(1 + self.tree.parent[row]).tolist()]


@st.composite
def cut_trees(draw):
    drafts, whole = draw(trees())
    width = draw(st.integers(2, min(whole.width, 12)))
    return Cut(whole.at(best_nodes(whole, width)), drafts.steps)


@pytest.fixture(scope="module")
def kernels():
    """SGLang's kernels for draft trees, and the stubs of the compiled ones."""
    return (
        importlib.import_module("sglang.kernels.ops.speculative.spec_tree"),
        importlib.import_module("sgl_kernel"),
    )


def blank(made, mask_mode):
    """The results that a tree is written into, as SGLang makes them."""
    b, n = made.requests, made.width
    prefix = int(made.lengths.sum()) * n if mask_mode == FULL_MASK else 0
    return {
        "mask": torch.full((prefix + b * n * n,), True),
        "positions": torch.zeros(b * n, dtype=torch.int64),
        "index": torch.full((b, n), -1),
        "child": torch.full((b, n), -1),
        "sibling": torch.full((b, n), -1),
    }


def expected(made, mask_mode):
    results, at = blank(made, mask_mode), 0
    b, n = made.requests, made.width
    results["index"] = torch.arange(b * n).view(b, n)
    for row, prefix in enumerate(made.lengths.tolist()):
        above = made.parents(row)
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
    return [node] if node == 0 else [node, *ancestors(above, above[node])]


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mask_mode", [FULL_MASK, QLEN_ONLY])
@few
@given(cut_trees())
def test_cut_trees_are_built(kernels, mask_mode, made):
    triton, stubs = kernels
    tree, lengths, wanted = made.tree, made.lengths, expected(made, mask_mode)
    results = blank(made, mask_mode)
    triton.sgl_build_tree_kernel_efficient_triton[(made.requests,)](
        tree.parent_list,
        tree.index,
        lengths,
        torch.cumsum(lengths, dim=0) - lengths,
        *results.values(),
        topk=tree.topk,
        depth=made.steps,
        draft_token_num=made.width,
        tree_mask_mode=mask_mode,
        batch_size=made.requests,
        parent_list_stride=tree.parent_list.stride(0),
        selected_index_stride=tree.index.stride(0),
    )
    assert equal(results, wanted)
    if mask_mode == QLEN_ONLY:
        results = blank(made, mask_mode)
        stubs.build_tree_kernel_efficient_cpu(
            tree.parent_list,
            tree.index,
            lengths,
            *results.values(),
            tree.topk,
            made.steps,
            made.width,
            QLEN_ONLY,
        )
        assert equal(results, wanted)


def said(made, seed):
    """Drafted tokens with their root, and what the target says: few tokens, so that
    they often agree."""
    dice = torch.Generator().manual_seed(seed)
    roots = torch.zeros(made.requests, 1, dtype=torch.int64)
    target = torch.randint(0, 3, (made.requests, made.width), generator=dice)
    return torch.cat([roots, made.tree.tokens % 3], dim=1), target


def unverified(made):
    b = made.requests
    return {
        "predicts": torch.zeros(b * made.width, dtype=torch.int32),
        "accept_index": torch.full((b, made.levels + 1), -1, dtype=torch.int32),
        "accept_token_num": torch.zeros(b, dtype=torch.int32),
    }


def accepted(made, tokens, target):
    results, n = unverified(made), made.width
    for row in range(made.requests):
        above, path = made.parents(row), [0]
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


@few
@given(cut_trees(), st.integers(0, 2**20))
def test_cut_trees_are_verified_greedily(kernels, made, seed):
    triton, stubs = kernels
    links = expected(made, QLEN_ONLY)
    tokens, target = said(made, seed)
    by_triton, by_stub = unverified(made), unverified(made)
    rest = (tokens, links["index"], links["child"], links["sibling"], target)
    triton.verify_tree_greedy_kernel_triton[(made.requests,)](
        *by_triton.values(),
        *rest,
        batch_size=made.requests,
        num_speculative_tokens=made.levels + 1,
        num_draft_tokens=made.width,
    )
    stubs.verify_tree_greedy_cpu(*by_stub.values(), *rest)
    wanted = accepted(made, tokens, target)
    assert equal(by_triton, wanted) and equal(by_stub, wanted)


def test_trees_of_these_tests_are_drafted_as_sglang_drafts():
    from sglang.srt.speculative.eagle_utils import organize_draft_results
    from sglang.srt.speculative.spec_utils import select_top_k_tokens

    batch, topk, steps = 2, 3, 3
    dice = torch.Generator().manual_seed(1)
    lists, scores = ([], [], []), None
    hidden, rows = torch.zeros(batch, 1), batch
    for step in range(steps):
        chances = torch.rand(rows, topk, generator=dice).sort(descending=True)[0]
        tokens = torch.randint(0, 9, (rows, topk), generator=dice)
        _, hidden, scores, level = select_top_k_tokens(
            step, chances, tokens, hidden, scores, topk
        )
        for found, each in zip(lists, level, strict=True):
            found.append(each)
        rows = batch * topk
    ours = organized(*lists, 10)
    theirs = organize_draft_results(*lists, 10)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    shapes = [[each.shape for each in found] for found in lists]
    made = drafting(0, batch, topk, steps).lists()
    assert [[each.shape for each in found] for found in made] == shapes
