"""The entry point, which SGLang calls first in each of its processes.

Unless the environment asks for hooks, nothing of SGLang is imported.
"""

import logging
from functools import partial
from multiprocessing import parent_process
from typing import Any

from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.integrations.environment import from_environment
from evict_profile.integrations.sglang import drafts, router, tree, worker
from evict_profile.integrations.sglang.compat import CUTTING, check_hooks, installed
from evict_profile.integrations.sglang.serving import Serving

logger = logging.getLogger("evict_profile.sglang")

SWITCH_TARGET = "sglang.srt.managers.scheduler.Scheduler.set_internal_state"
OFF = "evict-profile: off, nothing was changed: %s"


def register() -> None:
    try:
        settings = from_environment()
        if settings.mode == "off":
            return
        installed(CUTTING)
    except EvictProfileError as error:
        if parent_process() is None:  # the others would say it again
            logger.warning(OFF, error)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks(Serving(settings)).items():
        HookRegistry.register(target, hook, HookType.AROUND)


def hooks(serving: Serving) -> dict[str, Any]:
    around = {
        worker.CREATE: partial(create_worker, serving),
        worker.BUILD: partial(worker.build_verify_input, serving),
        tree.SCORES_TARGET: serving.scores.keep,
        tree.CHAIN_TARGET: serving.scores.keep_chain,
        tree.EXTEND_TARGET: serving.scores.keep_first,
        SWITCH_TARGET: serving.switch,
    }
    if serving.settings.fewer_steps:
        around[drafts.DRAFT_TARGET] = serving.fewer.draft
        around[drafts.CAPTURE_TARGET] = serving.fewer.capture
    if serving.settings.mode == "observe":
        around[router.ROUTER_TARGET] = serving.router.select
    if serving.budget:
        around[router.ROUTER_TARGET] = serving.budget.budgeted
    return around


def create_worker(
    serving: Serving, original: Any, algorithm: Any, server_args: Any
) -> Any:
    """SGLang's worker class, truncating where it drafts with one EAGLE or MTP head."""
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    base = original(algorithm, server_args)
    try:
        if base is not EAGLEWorkerV2:
            raise ConfigError(
                f"{algorithm.name} runs {base.__name__}, and drafts are cut in "
                "EAGLEWorkerV2 alone: use EAGLE3, EAGLE or NEXTN, without "
                "--enable-multi-layer-eagle"
            )
        check_hooks(hooks(serving))
        worker.check_overrides(base)
    except ConfigError as error:
        logger.warning(OFF, error)
        return base
    return worker.truncating(base, serving)
