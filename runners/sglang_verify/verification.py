"""One TARGET_VERIFY forward of a cell: its trees, its cached context, its graphs."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.graphs import GraphState
from runners.trees import random_parents

PROMPT = (1, 2, 3, 4)
"""Tokens that any vocabulary has."""

CACHES = ("k_buffer", "v_buffer", "kv_buffer")
"""What SGLang's pools call their tensors, a list of one a layer each."""


@dataclass(frozen=True)
class ServedTrees:
    """Trees of a batch, each with `width` nodes, as SGLang's drafter describes them.

    SGLang's kernel builds mask, positions and links from two lists: a flat index for
    each node, whose quotient by `topk` names its sibling group, and the flat index on
    which each group hangs. With `topk` as large as the tree, any tree fits: node
    i under parent p is p * n + i, and group p hangs on p.
    """

    parents: Tensor
    """int64 [B, n - 1], parent of node i + 1; 0 is the root."""

    @property
    def width(self) -> int:
        """Nodes of a tree, its root included."""
        return self.parents.shape[1] + 1

    @property
    def levels(self) -> int:
        """The `num_steps` to pass: no path is longer, and every group has room."""
        return max(2, self.width - 1)

    @property
    def index(self) -> Tensor:
        """int64 [B, n - 1], the flat index of each node."""
        nodes = torch.arange(1, self.width, device=self.parents.device)
        return self.parents * self.width + nodes

    @property
    def parent_list(self) -> Tensor:
        """int64 [B, n * (levels - 1) + 1], the flat index each group hangs on."""
        batch, n = len(self.parents), self.width
        groups = self.parents.new_full((batch, n * (self.levels - 1) + 1), -1)
        groups[:, 1:n] = self.index
        return groups


def random_trees(
    batch: int, width: int, seed: int, device: torch.device
) -> ServedTrees:
    """Trees in which each node hangs on any of those before it."""
    return ServedTrees(random_parents(batch, width, seed).to(device))


def chains(batch: int, width: int, seed: int, device: torch.device) -> ServedTrees:
    """Trees in which each node hangs on the one before it, whatever the seed."""
    return ServedTrees(torch.arange(width - 1, device=device).repeat(batch, 1))


class CacheSlots:
    """Requests with a cached context in SGLang's tables, by batch size.

    A request is admitted by a prefill of a few tokens. The rest of its context is noise
    in slots of the pool, because the cost of attention depends on the tokens read, not
    on their values. Each batch size has its own requests; all share the slots.
    """

    def __init__(
        self,
        model_runner: Any,
        batches: tuple[int, ...],
        request_tokens: int,
        seed: int,
    ) -> None:
        """Admit all requests; the slots are for the largest batch."""
        most = max(batches)
        slots = model_runner.token_to_kv_pool_allocator.alloc(most * request_tokens)
        assert slots is not None, "the pool was checked before"
        fill(model_runner.token_to_kv_pool, seed)
        self.model_runner, self.slots = model_runner, slots.view(most, request_tokens)
        self.batches = {batch: self.admit(batch) for batch in batches}

    def batch_of(self, size: int, context: int) -> Any:
        """A batch of `size` requests that all hold `context` cached tokens."""
        batch = self.batches[size]
        lengths = torch.full((size,), context, dtype=torch.int64)
        batch.seq_lens_cpu, batch.seq_lens_sum = lengths, size * context
        # Filled there: a copy would wait for the device.
        batch.seq_lens = torch.full_like(lengths, context, device=batch.device)
        batch.orig_seq_lens = batch.seq_lens.to(torch.int32)
        return batch

    def admit(self, size: int) -> Any:
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


@dataclass
class ServedVerifier:
    """The target, its requests' cache slots, and what verifies each width."""

    model_runner: Any
    slots: CacheSlots
    states: dict[int, GraphState]
    topk: int
    steps: int

    def prepare(self, trees: ServedTrees, context: int, seed: int) -> "ServedForward":
        """Lay out a forward over these trees; the graphs of their width must be in."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.eagle_utils import eagle_prepare_for_verify

        batch = self.slots.batch_of(len(trees.parents), context)
        batch.forward_mode = ForwardMode.DECODE
        batch.spec_info = verify_input = self.verify_input(batch, trees, seed)
        forward_batch, _ = eagle_prepare_for_verify(
            verify_input,
            self.model_runner.req_to_token_pool,
            batch,
            SimpleNamespace(model_runner=self.model_runner),
        )
        return ServedForward(self.model_runner, forward_batch)

    def verify_input(self, batch: Any, trees: ServedTrees, seed: int) -> Any:
        """Mask, positions and links, built by SGLang's own tree kernel."""
        from sglang.srt.speculative.eagle_utils import default_tree_mask_mode
        from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input

        roots, drafted = self.draw_tokens(trees, seed)
        made = build_eagle_verify_input(
            batch,
            SimpleNamespace(bonus_tokens=roots),
            trees.parent_list,
            trees.index,
            drafted,
            None,
            target_worker=SimpleNamespace(model_runner=self.model_runner),
            topk=trees.width,
            num_steps=trees.levels,
            num_draft_tokens=trees.width,
            tree_mask_mode=default_tree_mask_mode(),
            device=batch.device,
        )
        made.topk, made.spec_steps = self.topk, min(self.steps, trees.width - 1)
        return made

    def draw_tokens(self, trees: ServedTrees, seed: int) -> tuple[Tensor, Tensor]:
        """Random tokens: the roots [B], and what was drafted [B, n - 1]."""
        device = trees.parents.device
        generator = torch.Generator(device).manual_seed(seed)
        vocab = self.model_runner.model_config.vocab_size
        size = (len(trees.parents), trees.width)
        tokens = torch.randint(0, vocab, size, generator=generator, device=device)
        return tokens[:, 0].contiguous(), tokens[:, 1:].contiguous()


@dataclass
class ServedForward:
    """A forward that is laid out and can be run; SGLang says afterwards whether a
    captured graph served it."""

    model_runner: Any
    forward_batch: Any
    graph_ran: bool = False
    logits: Tensor | None = None

    @property
    def width(self) -> int:
        """Tokens a request, as SGLang laid them out."""
        rows = len(self.forward_batch.input_ids)
        return rows // int(self.forward_batch.batch_size)

    def run(self) -> None:
        with torch.no_grad():
            output = self.model_runner.forward(self.forward_batch)
        self.graph_ran = bool(output.can_run_graph)
        self.logits = output.logits_output.next_token_logits

    def tokens(self) -> Tensor:
        """The most likely token after each, once it ran."""
        assert self.logits is not None
        return self.logits.argmax(dim=-1)
