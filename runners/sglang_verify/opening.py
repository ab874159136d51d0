"""Opening a model in SGLang: checks, the plan of loading, the fingerprint."""

from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from evict_profile.config.model import BYTES_PER_VALUE, ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.compat import CUTTING, installed, observed_key
from evict_profile.integrations.sglang.router import ROUTER_TARGET, RouteBuffers
from evict_profile.records import parse
from runners.device import OUT_OF_MEMORY as TORCH_OUT_OF_MEMORY
from runners.device import describe
from runners.protocol import Message, Refusal
from runners.session import check_shape
from runners.sglang_verify.models import (
    FEWEST_LAYERS,
    activations,
    draft_folder,
    load_format,
    model_folder,
)
from runners.sglang_verify.server import LoadPlan

OUT_OF_MEMORY = (*TORCH_OUT_OF_MEMORY, "Not enough memory")
"""SGLang says it otherwise where weights leave no room for its pools."""

KERNELS = ("sglang-kernel", "sgl-kernel")
"""Names under which SGLang's own kernels are packaged, the newer first."""


def supported_version() -> str:
    try:
        return installed()
    except ConfigError as error:
        raise Refusal("device", str(error)) from error


def make_plan(
    model: Message, options: Message, device: torch.device, version: str, scratch: Path
) -> LoadPlan:
    own = options["engine"]
    target = model_folder(model, own["model"], scratch)
    draft = draft_folder(target, own["draft"], scratch)
    can_draft = device.type == "cuda" or version in CUTTING
    return LoadPlan(
        target=target,
        draft=draft,
        drafts=can_draft and model["num_layers"] >= FEWEST_LAYERS,
        dtype=activations(model),
        width=options["max_width"],
        steps=own["steps"],
        topk=own["topk"],
        batches=tuple(options["batches"]),
        context=options["max_context"],
        graphs=bool(options["graphs"]),
        attention=own["attention_backend"],
        seed=options["seed"],
        tp=own["tp"],
        rank=options.get("rank", 0),
        port=options.get("port", 0),
    )


def check_layers(model: Message, asked: object) -> None:
    """SGLang has no forward of some of a model's layers."""
    layers = model["num_layers"] - model["dense_layers"]
    if asked not in ("auto", layers):
        raise Refusal(
            "infeasible",
            f"{asked} layers were asked for, and SGLang runs all {layers}; leave "
            "--layers away, or give a config.json with fewer",
        )


def check_weights(model: Message, tp: int, free_bytes: float) -> None:
    """Refuse weights that are larger than the free memory, before they are loaded.

    They take at least the smaller of the sweep's type and the checkpoint's.
    """
    shape = parse(ModelSpec, model, "the request to open")
    formats = shape.dtype, shape.checkpoint_dtype
    value_bytes = min(BYTES_PER_VALUE[each] for each in formats)
    held = shape.total_parameters * value_bytes / tp
    if held > free_bytes:
        found = torch.cuda.is_available()
        takes = f"the weights of {shape.name} take {held / 1e9:,.0f} GB"
        fix = "--dtype fp8_block, or a larger engine.tp in a copy of the plan"
        raise Refusal(
            "memory",
            f"{'' if found else 'no GPU was found, and '}{takes} of "
            f"{'each device' if found else 'the memory of the CPU'}, and "
            f"{free_bytes / 1e9:,.0f} GB are free; choose a smaller model, "
            f"{fix if found else 'or run this on a machine with a GPU'}",
        )


def hook_the_router(router: RouteBuffers) -> None:
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


def check_room(plan: LoadPlan, tokens: int) -> None:
    """Refuse a KV pool of so many tokens if it cannot hold the largest batch."""
    most, needed = max(plan.batches), plan.tokens - plan.max_request_tokens
    if needed <= tokens:
        return
    room = tokens - needed + most * plan.max_request_tokens
    context = room // most - (plan.max_request_tokens - plan.context)
    raise Refusal(
        "memory",
        f"{most} requests with contexts of {plan.context:,} need {needed:,} tokens of "
        f"KV cache, and SGLang has memory for {tokens:,}: contexts to {context:,} fit, "
        f"or batches to {room // plan.max_request_tokens}; edit a copy of the plan",
    )


def describe_engine(model_runner: Any, plan: LoadPlan) -> Message:
    """Facts that make two measurements comparable."""
    key = observed_key(model_runner)
    return {
        **describe("sglang", __file__, torch.device(model_runner.device)),
        **{name: value for name, value in key.items() if name != "gpu"},
        "device": key["gpu"],
        "torch": torch.__version__,
        "kernels": kernels(),
        "weights": load_format(plan.target),
        "steps": plan.steps,
        "topk": plan.topk,
        "drafter": plan.draft.name if plan.drafts else "none",
        "drafter_weights": load_format(plan.draft) if plan.drafts else "none",
        "cache": "noise",
    }


def kernels() -> str:
    """The version of SGLang's kernels, or that stubs stand in for them."""
    for name in KERNELS:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "stand-in"


def check_format(asked: str, observed: str) -> None:
    """Refuse weights of another format than a sweep asks for, or of no known size."""
    if observed not in BYTES_PER_VALUE:
        known = ", ".join(BYTES_PER_VALUE)
        raise Refusal(
            "infeasible",
            f"SGLang loaded weights of the format {observed}, and sweeps know those of "
            f"{known}",
        )
    if asked not in ("auto", observed):
        raise Refusal(
            "infeasible",
            f"{asked} was asked for, and SGLang loaded weights of {observed}; leave "
            "--dtype away, or give the config.json of such a checkpoint as the model",
        )


def check_loaded(model: Message, layers: list[Any], config: Any) -> None:
    """Refuse SGLang's modules of routed experts and its config if they are not those of
    the sweep's model."""
    first = layers[0] if layers else None
    has = {
        "MoE layers": (model["num_layers"] - model["dense_layers"], len(layers)),
        "hidden size": (model["hidden_size"], config.hidden_size),
        "vocabulary": (model["vocab_size"], config.vocab_size),
        "experts": (model["moe"]["num_experts"], getattr(first, "num_experts", 0)),
        "top-k": (model["moe"]["top_k"], getattr(first, "top_k", 0)),
    }
    fix = "give the config.json that it loads as --model"
    check_shape(has, "infeasible", "what SGLang loaded", fix)
