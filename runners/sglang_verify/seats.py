"""Requests in SGLang's own tables, with a context in their cache.

A request is let in by a prefill of a few tokens; its further context is slots of the
pool, filled with noise: what attention costs depends on how much it reads, not on what.
Batch sizes keep requests of their own, and share the slots, since one runs at a time.
"""

from collections.abc import Iterator
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
class Seats:
    """The requests of each batch size.

    Attributes:
        reach: slots that each request can use.
        slots: int64 [batch, reach], slots that the requests of every batch share.
        batches: SGLang's batches, by size.
    """

    model_runner: Any
    slots: Tensor
    batches: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls, model_runner: Any, batches: tuple[int, ...], reach: int, seed: int
    ) -> "Seats":
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
        seats = cls(model_runner, slots.view(most, reach))
        seats.batches = {batch: seats.admit(batch) for batch in batches}
        return seats

    def seated(self, batch: int, context: int) -> Any:
        """A batch of so many requests that all hold `context` cached tokens."""
        seated = self.batches[batch]
        size = torch.full((batch,), context, dtype=torch.int64)
        seated.seq_lens_cpu, seated.seq_lens_sum = size, batch * context
        seated.seq_lens = size.to(seated.device)
        seated.orig_seq_lens = seated.seq_lens.to(torch.int32)
        return seated

    def admit(self, batch: int) -> Any:
        """Let requests in, and point their rows of the table at the slots."""
        from sglang.benchmark import one_batch

        requests = one_batch.prepare_synthetic_inputs_for_latency_test(
            batch, len(PROMPT), [list(PROMPT)] * batch
        )
        seated = one_batch.extend(requests, self.model_runner)[2]
        table = self.model_runner.req_to_token_pool.req_to_token
        reach = self.slots.shape[1]
        rows = seated.req_pool_indices
        table[rows, :reach] = self.slots[:batch].to(table.dtype)
        seated.spec_algorithm = self.model_runner.spec_algorithm
        return seated


def fill(pool: Any, seed: int) -> None:
    """Put noise into every cache of a pool."""
    torch.manual_seed(seed)
    for buffer in _buffers(pool):
        if buffer.is_floating_point() and buffer.element_size() > 1:
            buffer.normal_()


def _buffers(pool: Any) -> Iterator[Tensor]:
    for name in CACHES:
        yield from getattr(pool, name, None) or ()
