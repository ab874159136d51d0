"""What SGLang really runs here, and whether it is the model of the sweep."""

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from evict_profile.integrations.sglang.compat import observed_key
from runners.protocol import Message, Refusal
from runners.sglang_verify.server import Plan
from runners.torch_moe.device import describe

KERNELS = ("sglang-kernel", "sgl-kernel")
"""Names under which SGLang's own kernels are packaged, the newer first."""


def describe_engine(model_runner: Any, plan: Plan) -> Message:
    """Facts that make two measurements comparable."""
    key = observed_key(model_runner)
    return {
        **describe(torch.device(model_runner.device)),
        **{name: value for name, value in key.items() if name != "gpu"},
        "device": key["gpu"],
        "runner_sha256": source_digest(),
        "torch": torch.__version__,
        "kernels": kernels(),
        "weights": plan.target_format,
        "steps": plan.steps,
        "topk": plan.topk,
        "drafter": plan.draft.name if plan.drafts else "none",
        "drafter_weights": plan.draft_format if plan.drafts else "none",
        "cache": "noise",
    }


def kernels() -> str:
    """The version of SGLang's kernels, or that something stands in for them."""
    for name in KERNELS:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "stand-in"


def source_digest() -> str:
    """Digest of this runner's own code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def refuse_other_shape(model: Message, layers: list[Any], config: Any) -> None:
    """Refuse a model that is not the sweep's.

    Args:
        model: the toolkit's.
        layers: SGLang's modules of routed experts.
        config: SGLang's model config.

    Raises:
        Refusal: naming what differs.
    """
    first = layers[0] if layers else None
    has = {
        "MoE layers": (model["num_layers"] - model["dense_layers"], len(layers)),
        "hidden size": (model["hidden_size"], config.hidden_size),
        "vocabulary": (model["vocab_size"], config.vocab_size),
        "experts": (model["moe"]["num_experts"], getattr(first, "num_experts", 0)),
        "top-k": (model["moe"]["top_k"], getattr(first, "top_k", 0)),
    }
    for name, (asked, found) in has.items():
        if asked != found:
            raise Refusal(
                "infeasible",
                f"{name}: {asked} in the sweep's model, {found} in what SGLang "
                "loaded; give the config.json that it loads as --model",
            )
