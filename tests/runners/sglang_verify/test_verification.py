"""Random trees in the drafter's language, and requests with their context."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.sglang_verify.verification import CacheSlots, chains, fill, random_trees

CPU = torch.device("cpu")


def parents_read(trees, row):
    """Parent of each node but the root: by sibling group, then by flat index."""
    index, groups = trees.index[row].tolist(), trees.parent_list[row].tolist()
    above = [
        groups[flat // trees.width] if flat >= trees.width else None for flat in index
    ]
    return [0 if group is None else index.index(group) + 1 for group in above]


@given(st.integers(1, 4), st.integers(2, 64), st.integers(0, 1000))
def test_every_tree_is_read_as_it_was_drawn(batch, width, seed):
    trees = random_trees(batch, width, seed, CPU)
    for row, parents in enumerate(trees.parents.tolist()):
        assert parents_read(trees, row) == parents
        assert all(parent <= node for node, parent in enumerate(parents))


def test_sizes_and_chains_are_those_of_the_kernel():
    """It strides over topk * (num_steps - 1) + 1 entries a request."""
    trees, root = random_trees(3, 8, 0, CPU), random_trees(2, 1, 0, CPU)
    assert trees.parent_list.shape == (3, 8 * (trees.levels - 1) + 1)
    assert (root.width, root.index.shape) == (1, (2, 0))
    assert chains(1, 5, 0, CPU).parents.tolist() == [[0, 1, 2, 3]]


def model_runner(free, table):
    slots = torch.arange(100, 100 + free)
    return SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(
            alloc=lambda size: slots[:size] if size <= free else None
        ),
        token_to_kv_pool=SimpleNamespace(k_buffer=[], v_buffer=[]),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        max_total_num_tokens=free,
        spec_algorithm="EAGLE3",
    )


@pytest.fixture
def slots(monkeypatch):
    rows = iter([torch.tensor([1]), torch.tensor([2, 3])])
    table = torch.zeros(4, 12, dtype=torch.int32)

    def admit(self, batch):
        own = next(rows)
        table[own, :9] = self.slots[:batch].to(table.dtype)
        return SimpleNamespace(device="cpu", req_pool_indices=own)

    monkeypatch.setattr(CacheSlots, "admit", admit)
    return CacheSlots(model_runner(18, table), (1, 2), request_tokens=9, seed=0)


def test_batches_share_the_slots_and_have_the_context_that_is_asked_for(slots):
    batch = slots.batch_of(2, 5)
    for lengths in (batch.seq_lens, batch.seq_lens_cpu, batch.orig_seq_lens):
        assert lengths.tolist() == [5, 5]
    assert batch.seq_lens_sum == 10
    table = slots.model_runner.req_to_token_pool.req_to_token
    assert torch.equal(table[1], table[2])
    assert not set(table[2, :9].tolist()) & set(table[3, :9].tolist())


def test_caches_are_filled_with_noise():
    pool = SimpleNamespace(
        k_buffer=[torch.zeros(4)], kv_buffer=[torch.zeros(4, dtype=torch.uint8)]
    )
    fill(pool, seed=1)
    assert pool.k_buffer[0].std() > 0.0
    assert not pool.kv_buffer[0].any()
