"""Drafts of fewer levels: a draft backend and draft graphs of their own.

A draft graph has its levels captured. SGLang's adaptive speculation swaps such graphs
together with those that verify and those that extend the drafter's cache, for chains
alone. Here the widths that verify have graphs of their own, results are padded to the
whole tree's, and so the drafting can be swapped alone, for trees as well.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.compat import assigned, overridden
from evict_profile.integrations.sglang.graphs import capturing
from evict_profile.integrations.sglang.tree import DRAFTER
from evict_profile.table import CostTable

DRAFT_TARGET = DRAFTER + "draft"
CAPTURE_TARGET = DRAFTER + "_capture_cuda_graphs"

BUILT = (
    "draft_attn_backend",
    "draft_extend_attn_backend",
    "cuda_graph_runner",
    "cuda_graph_runner_for_draft_extend",
)
"""What SGLang's drafter sets when it builds its backends and captures its graphs."""

SWAPPED = ("speculative_num_steps", "draft_attn_backend", "cuda_graph_runner")
"""What a draft reads."""


class FewerLevels:
    """Drafts of fewer levels, and whether the step at hand is one.

    Args:
        guarded: around all that is not SGLang's own.

    Attributes:
        steps: the fewer levels; 0 builds nothing. Set before graphs are captured.
        most: largest batch that drafts them; None for any.
        chosen: whether this step drafts them.
    """

    def __init__(self, guarded: Callable[[], AbstractContextManager[None]]) -> None:
        self._guarded = guarded
        self.steps, self.chosen = 0, False
        self.most: int | None = None
        self._built: dict[str, Any] = {}

    def capture(self, original: Callable[..., Any], drafter: Any) -> None:
        """The hook around the capture of the drafter's graphs."""
        original(drafter)
        with self._guarded():
            if self.steps:
                self._built = build(drafter, self.steps, original, self.most)

    def drop(self) -> None:
        """Give back what was built; a step at hand stays what it is."""
        self._built = {}

    def draft(
        self, original: Callable[..., Any], drafter: Any, batch: Any, **kwargs: Any
    ) -> Any:
        """The hook around a draft."""
        built = self._built if self.chosen else {}
        backend = {k: v for k, v in built.items() if k == "draft_attn_backend"}
        with assigned(drafter, **built), assigned(drafter.draft_runner, **backend):
            return original(drafter, batch, **kwargs)


def build(
    drafter: Any, steps: int, capture: Callable[[Any], None], most: int | None = None
) -> dict[str, Any]:
    """What the drafter has for fewer levels, by attribute; built within the contexts
    in which SGLang captures its own. `capture` captures a drafter's graphs, here for
    batches of `most` requests.
    """
    runner, target = drafter.draft_runner, drafter.target_worker.model_runner
    own = {name: getattr(drafter, name) for name in BUILT}
    backends = ("attn_backend", "draft_attn_backend")
    with ExitStack() as stack:
        options = {"speculative_num_steps": steps}
        stack.enter_context(overridden(runner.server_args, **options))
        stack.enter_context(assigned(drafter, **own, **options))
        put_back = {name: getattr(runner, name) for name in backends}
        stack.enter_context(assigned(runner, **put_back))
        drafter.init_attention_backend()
        drafter.draft_extend_attn_backend = None  # Extensions keep their graphs.
        if target.decode_cuda_graph_runner:
            stack.enter_context(capturing(target, most))
        capture(drafter)
        return {name: getattr(drafter, name) for name in SWAPPED}


def check_fewer_steps(steps: int, table: CostTable, worker: Any) -> None:
    """Refuse fewer levels that the server cannot draft, or a table that cannot cost
    them.
    """
    asked, most = f"EVICT_PROFILE_FEWER_STEPS={steps}", worker.speculative_num_steps
    topk, width = worker.topk, worker.speculative_num_draft_tokens
    nodes = topk + (steps - 1) * topk**2
    if table.drafting is None:
        raise ConfigError(
            f"{asked} weighs the time of levels, and {table.path} has no time of "
            "drafting; measure it with: evict-profile calibrate"
        )
    if steps >= most:
        raise ConfigError(
            f"{asked}, and the server drafts {most} levels; give fewer, or raise "
            "--speculative-num-steps"
        )
    if topk > 1 and nodes < width - 1:
        raise ConfigError(
            f"{asked} drafts {nodes} nodes with topk {topk}, and the server verifies "
            f"trees of {width - 1}; give more, or lower --speculative-num-draft-tokens"
        )


def whole_chain(drafted: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """A chain of fewer levels in SGLang's form of one of `width` tokens, its root
    included: groups of parents, indices and tokens, int64 [B, width - 1] each.

    Token 0 fills the rest, which has a path probability of 0.
    """
    requests, levels = drafted.shape
    index = torch.arange(width - 1, device=drafted.device).repeat(requests, 1)
    tokens = pad(drafted, (0, width - 1 - levels))
    return index - 1, index, tokens
