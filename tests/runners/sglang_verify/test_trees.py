"""Random trees in the drafter's language, read as SGLang's kernel reads them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.sglang_verify.trees import Trees, chains, random_trees

CPU = torch.device("cpu")


def parents_read(trees: Trees, row: int) -> list[int]:
    """Parent of each node but the root: by sibling group, then by flat index."""
    index, groups = trees.index[row].tolist(), trees.parent_list[row].tolist()
    found = []
    for flat in index:
        group = flat // trees.width
        found.append(0 if group == 0 else index.index(groups[group]) + 1)
    return found


@given(st.integers(1, 4), st.integers(2, 64), st.integers(0, 1000))
def test_every_tree_is_read_as_it_was_drawn(batch: int, width: int, seed: int) -> None:
    trees = random_trees(batch, width, seed, CPU)
    for row, parents in enumerate(trees.parents.tolist()):
        assert parents_read(trees, row) == parents
        assert all(parent <= node for node, parent in enumerate(parents))


def test_the_kernel_finds_room_for_every_group() -> None:
    """It strides over topk * (num_steps - 1) + 1 entries a request."""
    trees = random_trees(3, 8, 0, CPU)
    assert trees.parent_list.shape == (3, 8 * (trees.levels - 1) + 1)


def test_a_root_alone_is_a_tree() -> None:
    trees = random_trees(2, 1, 0, CPU)
    assert trees.width == 1
    assert trees.index.shape == (2, 0)


def test_a_chain_hangs_each_on_the_one_before() -> None:
    assert chains(1, 5, CPU).parents.tolist() == [[0, 1, 2, 3]]


def test_trees_differ_by_seed_and_request() -> None:
    """One shape would make a nuisance factor look like a constant."""
    one, other = (random_trees(2, 16, seed, CPU).parents for seed in (0, 1))
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])
