"""Drafts of fewer levels, with a draft backend and draft graphs of their own.

A draft graph has its levels captured. The widths that verify have graphs apart, and
results are padded to the whole tree's, so only the drafting is swapped.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.compat import assigned, overridden
from evict_profile.integrations.sglang.graphs import capturing
from evict_profile.integrations.sglang.tree import DRAFTER
from evict_profile.table import CostTable

DRAFT_TARGET = DRAFTER + "draft"
CAPTURE_TARGET = DRAFTER + "_capture_cuda_graphs"

SWAPPED = ("speculative_num_steps", "draft_attn_backend", "cuda_graph_runner")
EXTENDING = ("draft_extend_attn_backend", "cuda_graph_runner_for_draft_extend")
BACKENDS = ("attn_backend", "draft_attn_backend")
"""What drafts read of the drafter, what extensions read, and what both of its runner.
"""


class FewerLevels:
    """Drafts of `steps` levels for batches of `most` requests; `chosen` in this step.

    With 0 steps nothing is built. `guarded` is around all that is not SGLang's own.
    """

    def __init__(self, guarded: Callable[[], AbstractContextManager[None]]) -> None:
        self._guarded = guarded
        self.steps, self.chosen = 0, False
        self.most: int | None = None
        self.built: dict[str, Any] = {}

    def capture(self, original: Callable[..., Any], drafter: Any) -> None:
        """The hook around the capture of the drafter's graphs, in its contexts."""
        original(drafter)
        with self._guarded(), ExitStack() as stack:
            if not self.steps:
                return
            runner, target = drafter.draft_runner, drafter.target_worker.model_runner
            for owner, names in ((drafter, SWAPPED + EXTENDING), (runner, BACKENDS)):
                own = {name: getattr(owner, name) for name in names}
                stack.enter_context(assigned(owner, **own))
            steps = {"speculative_num_steps": self.steps}
            stack.enter_context(overridden(runner.server_args, **steps))
            stack.enter_context(assigned(drafter, **steps))
            drafter.init_attention_backend()
            drafter.draft_extend_attn_backend = None  # Extensions keep their graphs.
            if target.decode_cuda_graph_runner:
                stack.enter_context(capturing(target, self.most))
            original(drafter)
            self.built = {name: getattr(drafter, name) for name in SWAPPED}

    def draft(
        self, original: Callable[..., Any], drafter: Any, batch: Any, **kwargs: Any
    ) -> Any:
        """The hook around a draft."""
        built = self.built if self.chosen else {}
        backend = {name: built[name] for name in BACKENDS if name in built}
        with assigned(drafter, **built), assigned(drafter.draft_runner, **backend):
            return original(drafter, batch, **kwargs)


def check_fewer_steps(steps: int, table: CostTable, worker: Any) -> None:
    """Refuse levels that the server cannot draft, or that the table does not cost."""
    topk, most = worker.topk, worker.speculative_num_steps
    nodes, full = topk + (steps - 1) * topk**2, worker.speculative_num_draft_tokens - 1
    wrong = {
        f"{table.path} has no time of drafting; measure it with: evict-profile "
        "calibrate": table.drafting is None,
        f"the server drafts {most} levels; give fewer": steps >= most,
        f"its trees have {nodes} nodes, and the server's {full}; give more, or lower "
        "--speculative-num-draft-tokens": topk > 1 and nodes < full,
    }
    for why, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(f"EVICT_PROFILE_FEWER_STEPS={steps}: {why}")
