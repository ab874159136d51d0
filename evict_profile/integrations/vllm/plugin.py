"""How the curves reach vLLM: at start by an entry point, or later by a call.

vLLM loads `vllm.general_plugins` in each process before a worker is made.
`EvictProfileWorker` is a `worker_extension_cls`, for
`collective_rpc("use_evict_profile_table", args=(PATH,))`. The first rank of a tensor
parallel group decides for all, so that no rank waits for another.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evict_profile.errors import EvictProfileError
from evict_profile.integrations.environment import from_environment

logger = logging.getLogger("evict_profile.vllm")

OFF = "evict-profile: off, vLLM keeps its own curves: {}"


class EvictProfileWorker:
    model_runner: Any

    def use_evict_profile_table(self, path: str) -> str:
        """Decide by a table's curves from now on; returns what was done, or why not."""
        return use_table(self.model_runner, Path(path))


def register() -> None:
    """The entry point; without a table it imports nothing of vLLM."""
    try:
        if not (path := from_environment().table):
            return
        from evict_profile.integrations.vllm.checks import installed

        installed()
    except EvictProfileError as error:
        logger.warning("%s", OFF.format(error))
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.init_device
    if not getattr(original, "by_evict_profile", False):
        WorkerWrapperBase.init_device = after_init(original, path)


def after_init(original: Callable[[Any], None], path: Path) -> Callable[[Any], None]:

    def init_device(self: Any) -> None:
        original(self)
        worker = self.worker
        warm_up = worker.compile_or_warm_up_model

        def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> Any:
            done = warm_up(*args, **kwargs)
            use_table(worker.model_runner, path)
            return done

        worker.compile_or_warm_up_model = compile_or_warm_up_model

    init_device.by_evict_profile = True  # type: ignore[attr-defined]
    return init_device


def use_table(model_runner: Any, path: Path) -> str:
    manager = getattr(model_runner, "adaptive_verification", None)
    curves, message = _decide(model_runner, path)
    if manager is not None:
        from vllm.distributed.parallel_state import get_tp_group

        curves, message = get_tp_group().broadcast_object((curves, message), src=0)
        if curves:
            curves, message = _hand_on(manager, curves, message)
    logger.log(logging.INFO if curves else logging.WARNING, "%s", message)
    return str(message)


def _decide(model_runner: Any, path: Path) -> tuple[Any, str]:
    """The curves and a description, or None and a reason; no error may end a server."""
    from evict_profile.integrations.vllm.checks import curves_for

    try:
        curves = curves_for(model_runner, path)
        points, (last, _) = len(curves[1]), curves[1][-1]
    except Exception as error:
        return None, _why_off(error)
    return curves, (
        f"evict-profile: vLLM verifies by {path}, {points} points up to {last} tokens; "
        "attention and MoE backends are not checked"
    )


def _hand_on(manager: Any, curves: Any, message: str) -> tuple[Any, str]:
    try:
        manager.set_cost_curves(*curves)
    except Exception as error:
        return None, _why_off(error)
    return curves, message


def _why_off(error: Exception) -> str:
    if not isinstance(error, EvictProfileError):
        logger.exception("evict-profile: unexpected")
    return OFF.format(error)
