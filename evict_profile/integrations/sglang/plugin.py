"""The entry point: what SGLang calls in each of its processes, before anything else.

Does nothing, and imports nothing of SGLang, unless the environment asks for it. Then it
registers hooks; all else happens in the worker that they lead to.
"""

import logging
from dataclasses import dataclass, field
from multiprocessing import parent_process
from typing import Any

from evict_profile.errors import EvictProfileError
from evict_profile.integrations.sglang import buffers, worker
from evict_profile.integrations.sglang.budget import BudgetHook
from evict_profile.integrations.sglang.buffers import RouteBuffers, Scores
from evict_profile.integrations.sglang.compat import installed
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.settings import Settings, from_environment

logger = logging.getLogger("evict_profile.sglang")


def register() -> None:
    """Register the hooks, if the environment asks for any."""
    try:
        settings = from_environment()
        if settings.mode == "off":
            return
        installed()
    except EvictProfileError as error:
        if parent_process() is None:  # the others would say it again
            logger.warning("evict-profile: off, nothing was changed: %s", error)
        return
    Plugin(settings).install()


@dataclass
class Plugin:
    """The hooks of one process, and what they share."""

    settings: Settings
    scores: Scores = field(default_factory=Scores)
    router: RouteBuffers = field(default_factory=RouteBuffers)
    budget: BudgetHook | None = None
    serving: Serving | None = None

    def __post_init__(self) -> None:
        if experts := self.settings.expert_budget:
            self.budget = BudgetHook(experts)

    def install(self) -> None:
        """Register the hooks with SGLang, which applies them when all plug-ins are
        loaded."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for target, hook in self.hooks().items():
            HookRegistry.register(target, hook, HookType.AROUND)

    def hooks(self) -> dict[str, Any]:
        """The function around each hooked target."""
        found: dict[str, Any] = {
            worker.CREATE: self.create_worker,
            worker.BUILD: self.build_verify_input,
            buffers.SCORES_TARGET: self.scores.keep,
        }
        if self.settings.mode == "observe":
            found[buffers.ROUTER_TARGET] = self.router.select
        if self.budget:
            found[buffers.ROUTER_TARGET] = self.budget.budgeted
        return found

    def create_worker(self, original: Any, algorithm: Any, server_args: Any) -> Any:
        """SGLang's worker class, or ours over it where it is EAGLE-3's."""
        from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

        base = original(algorithm, server_args)
        if base is EAGLEWorkerV2 and algorithm.is_eagle3():
            return worker.truncating(base, self.begin)
        logger.warning(
            "evict-profile: off, nothing was changed: %s runs %s, and only EAGLE3 "
            "is cut",
            algorithm.name,
            base.__name__,
        )
        return base

    def begin(self, made: Any) -> Serving:
        """The state of a new worker."""
        needed = frozenset(self.hooks())
        self.serving = Serving(
            made, self.settings, self.scores, self.router, self.budget, needed
        )
        return self.serving

    def build_verify_input(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Cut the tree, if there is a worker whose trees are cut."""
        if self.serving is None:
            return original(*args, **kwargs)
        return worker.build_verify_input(original, self.serving, *args, **kwargs)
