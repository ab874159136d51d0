"""Requests and their context, over tables and pools of plain tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.protocol import Refusal
from runners.sglang_verify.slots import CacheSlots, fill


def model_runner(free: int, table: torch.Tensor) -> Any:
    """What of SGLang's model runner the slots read."""
    all_slots = torch.arange(100, 100 + free)
    return SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(
            alloc=lambda size: all_slots[:size] if size <= free else None
        ),
        token_to_kv_pool=SimpleNamespace(k_buffer=[], v_buffer=[]),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        max_total_num_tokens=free,
        spec_algorithm="EAGLE3",
    )


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> CacheSlots:
    """Batches of one and two requests, nine slots each."""
    rows = iter([torch.tensor([1]), torch.tensor([2, 3])])
    table = torch.zeros(4, 12, dtype=torch.int32)

    def admit(self: CacheSlots, batch: int) -> Any:
        own = next(rows)
        table[own, :9] = self.slots[:batch].to(table.dtype)
        return SimpleNamespace(device="cpu", req_pool_indices=own)

    monkeypatch.setattr(CacheSlots, "admit", admit)
    return CacheSlots.make(model_runner(18, table), (1, 2), reach=9, seed=0)


def test_a_batch_has_the_context_that_is_asked_for(slots: CacheSlots) -> None:
    batch = slots.batch_of(2, 5)
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == [5, 5]
    assert batch.orig_seq_lens.tolist() == [5, 5]
    assert batch.seq_lens_sum == 10


def test_batches_share_the_slots(slots: CacheSlots) -> None:
    table = slots.model_runner.req_to_token_pool.req_to_token
    assert torch.equal(table[1], table[2])
    assert not set(table[2, :9].tolist()) & set(table[3, :9].tolist())


def test_a_pool_too_small_is_refused() -> None:
    runner = model_runner(17, torch.zeros(4, 12))
    with pytest.raises(Refusal, match="memory for 17 tokens in all; choose a smaller"):
        CacheSlots.make(runner, (1, 2), reach=9, seed=0)


def test_caches_are_filled_with_noise() -> None:
    pool = SimpleNamespace(
        k_buffer=[torch.zeros(4)], kv_buffer=[torch.zeros(4, dtype=torch.uint8)]
    )
    fill(pool, seed=1)
    assert pool.k_buffer[0].std() > 0.0
    assert not pool.kv_buffer[0].any()
