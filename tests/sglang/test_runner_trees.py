"""SGLang's own tree kernel, on the runner's random trees."""

import pytest
import torch

from runners.sglang_verify.verification import chains, random_trees

CPU = torch.device("cpu")


def seen_by(parents):
    """What each node attends to of the tree: itself and its ancestors."""
    mask = torch.eye(len(parents) + 1, dtype=torch.bool)
    for node, parent in enumerate(parents, start=1):
        mask[node] |= mask[parent]
    return mask


def built(trees, context):
    """Mask bool [B, n, n] and positions [B, n] as SGLang makes them."""
    eagle = pytest.importorskip("sglang.srt.speculative.eagle_utils")
    batch, n = len(trees.parents), trees.width
    mask, positions, *_ = eagle.build_tree_kernel_efficient(
        torch.zeros(batch, dtype=torch.int64),
        trees.parent_list,
        trees.index,
        torch.zeros(batch, n - 1, dtype=torch.int64),
        torch.full((batch,), context),
        batch * context,
        n,
        trees.levels,
        n,
        eagle.TreeMaskMode.QLEN_ONLY,
    )
    return mask.view(batch, n, n), positions.view(batch, n)


@pytest.mark.parametrize("width", [1, 2, 5, 17, 64])
@pytest.mark.parametrize("shape", ["random", "chain"])
def test_each_node_sees_its_ancestors(width, shape):
    random = shape == "random"
    trees = (random_trees if random else chains)(3, width, width, CPU)
    masks, positions = built(trees, context=40)
    for mask, position, parents in zip(
        masks, positions, trees.parents.tolist(), strict=True
    ):
        expected = seen_by(parents)
        assert torch.equal(mask, expected)
        assert position.tolist() == (39 + expected.sum(dim=1)).tolist()
