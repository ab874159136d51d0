"""What the runner checks and decides before SGLang is loaded."""

from pathlib import Path

import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.buffers import ROUTER_TARGET, Router
from evict_profile.integrations.sglang.compat import ON_CPU, installed
from runners.protocol import Message, Refusal
from runners.sglang_verify.models import (
    FEWEST_LAYERS,
    draft_folder,
    load_format,
    model_folder,
)
from runners.sglang_verify.server import Plan
from runners.torch_moe.device import OUT_OF_MEMORY as TORCH_OUT_OF_MEMORY

OUT_OF_MEMORY = (*TORCH_OUT_OF_MEMORY, "Not enough memory")
"""SGLang says it otherwise where weights leave no room for its pools."""


def supported_version() -> str:
    """The installed version of SGLang.

    Raises:
        Refusal: there is none, or one that is not known.
    """
    try:
        return installed()
    except ConfigError as error:
        raise Refusal("device", str(error)) from error


def make_plan(
    model: Message, options: Message, device: torch.device, version: str, scratch: Path
) -> Plan:
    """What is to be loaded."""
    own = options["sglang"]
    target = model_folder(model, own["model"], scratch)
    draft = draft_folder(target, own["draft"], scratch)
    can_draft = device.type == "cuda" or version in ON_CPU
    return Plan(
        target=target,
        target_format=load_format(target),
        draft=draft,
        draft_format=load_format(draft),
        drafts=can_draft and model["num_layers"] >= FEWEST_LAYERS,
        dtype=model["dtype"],
        width=options["max_width"],
        steps=own["steps"],
        topk=own["topk"],
        batches=tuple(options["batches"]),
        context=options["max_context"],
        graphs=bool(options["graphs"]),
        attention=own["attention_backend"],
        seed=options["seed"],
    )


def refuse_some_layers(model: Message, asked: object) -> None:
    """SGLang has no forward of some of a model's layers.

    Raises:
        Refusal: another number was asked for than the model has.
    """
    layers = model["num_layers"] - model["dense_layers"]
    if asked not in ("auto", layers):
        raise Refusal(
            "infeasible",
            f"{asked} layers were asked for, and SGLang runs all {layers}; leave "
            "--layers away, or give a config.json with fewer",
        )


def hook_the_router(router: Router) -> None:
    """Put the router's hook into SGLang; before a model is loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(ROUTER_TARGET, router.select, HookType.AROUND)
    HookRegistry.apply_hooks()


def refused_memory(error: Exception, kind: str) -> Exception:
    """The refusal that running out of memory becomes; another error as it is."""
    words = str(error)
    if not any(sign in words for sign in OUT_OF_MEMORY):
        return error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Refusal(kind, words.splitlines()[0])
