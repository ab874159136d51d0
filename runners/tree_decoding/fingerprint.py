"""What the engine is and runs on."""

import hashlib
from pathlib import Path

import torch

from runners.measuring import check_shape, source_digest
from runners.protocol import Message
from runners.torch_moe.device import describe, pick_device
from runners.tree_decoding.checkpoint import WEIGHTS, Checkpoint
from runners.tree_decoding.target import TargetShape

__all__ = ["describe_engine", "describe_world", "pick_device", "refuse_other_shape"]

ENGINE = "tree_decoding"


def describe_engine(device: torch.device) -> Message:
    """Facts that make two measurements comparable."""
    own = {"engine": ENGINE, "runner_sha256": source_digest(__file__)}
    return {**describe(device), **own}


def describe_world(folder: str, world: Checkpoint, device: torch.device) -> Message:
    """What a trace is of."""
    shape, engine = world.target.shape, describe_engine(device)
    weights = (Path(folder) / WEIGHTS).read_bytes()
    return {
        "model": world.about["model"],
        "experts": shape.experts,
        "top_k": shape.top_k,
        "layers": shape.layers,
        "engine": ENGINE,
        "engine_version": engine["engine_version"],
        "device": engine["device"],
        "threads": torch.get_num_threads(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }


def refuse_other_shape(model: Message, shape: TargetShape) -> None:
    """Refuse a model description that is not the checkpoint's.

    Raises:
        Refusal: naming what differs.
    """
    attention, moe = model["attention"], model["moe"]
    asked = {
        "vocab": model["vocab_size"],
        "hidden": model["hidden_size"],
        "layers": model["num_layers"],
        "heads": attention["num_heads"],
        "key_heads": attention["num_kv_heads"],
        "head_dim": attention["head_dim"],
        "experts": moe["num_experts"],
        "top_k": moe["top_k"],
        "expert_width": moe["expert_width"],
    }
    check_shape(
        {name: (value, getattr(shape, name)) for name, value in asked.items()},
        kind="world",
        found_in="the world",
        fix="pass the world's own model.yaml as --model",
    )
