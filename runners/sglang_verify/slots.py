"""Requests in SGLang's own tables, with a context in their cache.

A request is let in by a prefill of a few tokens; its further context is slots of the
pool, filled with noise: what attention costs depends on how much it reads, not on what.
Batch sizes keep requests of their own, and share the slots, since one runs at a time.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from runners.protocol import Refusal

PROMPT = (1, 2, 3, 4)
"""Tokens that any vocabulary has."""

CACHES = ("k_buffer", "v_buffer", "kv_buffer")
"""What SGLang's pools call their tensors, a list of one a layer each."""


@dataclass
class CacheSlots:
    """The requests of each batch size.

    Attributes:
        slots: int64 [batch, reach], slots that the requests of every batch share.
        batches: SGLang's batches, by size.
    """

    model_runner: Any
    slots: Tensor
    batches: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls, model_runner: Any, batches: tuple[int, ...], reach: int, seed: int
    ) -> "CacheSlots":
        """Let all requests in, with slots for the largest batch, full of noise.

        Raises:
            Refusal: SGLang had no memory for so many.
        """
        most = max(batches)
        slots = model_runner.token_to_kv_pool_allocator.alloc(most * reach)
        if slots is None:
            raise Refusal(
                "memory",
                f"{most} requests of {reach} tokens were asked for, and SGLang has "
                f"memory for {model_runner.max_total_num_tokens} tokens in all; choose "
                "a smaller batch or a shorter context",
            )
        fill(model_runner.token_to_kv_pool, seed)
        made = cls(model_runner, slots.view(most, reach))
        made.batches = {batch: made.admit(batch) for batch in batches}
        return made

    def batch_of(self, size: int, context: int) -> Any:
        """A batch of so many requests that all hold `context` cached tokens."""
        batch = self.batches[size]
        lengths = torch.full((size,), context, dtype=torch.int64)
        batch.seq_lens_cpu, batch.seq_lens_sum = lengths, size * context
        batch.seq_lens = lengths.to(batch.device)
        batch.orig_seq_lens = batch.seq_lens.to(torch.int32)
        return batch

    def admit(self, size: int) -> Any:
        """Let requests in, and point their rows of the table at the slots."""
        from sglang.benchmark import one_batch

        requests = one_batch.prepare_synthetic_inputs_for_latency_test(
            size, len(PROMPT), [list(PROMPT)] * size
        )
        batch = one_batch.extend(requests, self.model_runner)[2]
        table = self.model_runner.req_to_token_pool.req_to_token
        table[batch.req_pool_indices, : self.slots.shape[1]] = self.slots[:size].to(
            table.dtype
        )
        batch.spec_algorithm = self.model_runner.spec_algorithm
        return batch


def fill(pool: Any, seed: int) -> None:
    """Put noise into every cache of a pool."""
    torch.manual_seed(seed)
    for name in CACHES:
        for buffer in getattr(pool, name, None) or ():
            if buffer.is_floating_point() and buffer.element_size() > 1:
                buffer.normal_()
