"""One TARGET_VERIFY forward of a cell, with the graphs of its width."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.graphs import GraphState
from runners.sglang_verify.slots import CacheSlots
from runners.sglang_verify.trees import Trees


@dataclass
class Verifier:
    """The target, its requests' cache slots, and what verifies each width.

    Attributes:
        states: by width.
        topk, steps: what the server would draft with.
    """

    model_runner: Any
    slots: CacheSlots
    states: dict[int, GraphState]
    topk: int
    steps: int

    def prepare(self, trees: Trees, context: int, seed: int) -> "Forward":
        """Lay out a forward over these trees; the graphs of their width must be in."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative.eagle_utils import eagle_prepare_for_verify

        batch = self.slots.batch_of(len(trees.parents), context)
        batch.forward_mode = ForwardMode.DECODE
        batch.spec_info = verify_input = self.verify_input(batch, trees, seed)
        forward_batch, graph = eagle_prepare_for_verify(
            verify_input,
            self.model_runner.req_to_token_pool,
            batch,
            SimpleNamespace(model_runner=self.model_runner),
        )
        return Forward(self.model_runner, forward_batch, bool(graph))

    def verify_input(self, batch: Any, trees: Trees, seed: int) -> Any:
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

    def draw_tokens(self, trees: Trees, seed: int) -> tuple[Tensor, Tensor]:
        """Random tokens: the roots [B], and what was drafted [B, n - 1]."""
        generator = torch.Generator().manual_seed(seed)
        vocab = self.model_runner.model_config.vocab_size
        size = (len(trees.parents), trees.width)
        tokens = torch.randint(0, vocab, size, generator=generator)
        tokens = tokens.to(trees.parents.device)
        return tokens[:, 0].contiguous(), tokens[:, 1:].contiguous()


@dataclass
class Forward:
    """A forward that is laid out and can be run.

    Attributes:
        graph_ready: SGLang said beforehand that a captured graph serves it.
        graph_ran: SGLang said afterwards that one did.
        logits: of every token, once it ran.
    """

    model_runner: Any
    forward_batch: Any
    graph_ready: bool
    graph_ran: bool = False
    logits: Tensor | None = None

    @property
    def width(self) -> int:
        """Tokens a request, as SGLang laid them out."""
        rows = len(self.forward_batch.input_ids)
        return rows // int(self.forward_batch.batch_size)

    def run(self) -> None:
        """Run it once."""
        with torch.no_grad():
            output = self.model_runner.forward(self.forward_batch)
        self.graph_ran = bool(output.can_run_graph)
        self.logits = output.logits_output.next_token_logits

    def tokens(self) -> Tensor:
        """The most likely token after each, once it ran."""
        assert self.logits is not None
        return self.logits.argmax(dim=-1)


def without_graph(state: GraphState) -> GraphState:
    """The same attention backend, eagerly."""
    return replace(state, graph_runner=None)
