"""A trained target with its drafter, from disk: weights, tokeniser, what they are.

The weights are in half precision. examples/small_world makes them.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from evict_profile.config.model import AttentionSpec, MoeSpec
from runners.device import describe
from runners.protocol import Message, Refusal
from runners.torch_moe.shape import Noise, StackShape
from runners.torch_moe.stack import Stack
from runners.tree_decoding.drafter import Drafter
from runners.tree_decoding.target import Target, TargetShape

WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
ABOUT = "world.json"
ENGINE = "tree_decoding"


@dataclass(frozen=True)
class Checkpoint:
    """A trained target and its drafter, ready to be used."""

    target: Target
    drafter: Drafter
    tokenizer: Tokenizer
    about: dict[str, Any]


def open_checkpoint(folder: str) -> Checkpoint:
    """The checkpoint in a folder."""
    path = Path(folder)
    files = (ABOUT, WEIGHTS, TOKENIZER)
    if missing := [name for name in files if not (path / name).is_file()]:
        # A sweep, and so a table, names its checkpoint as seen from the checkout.
        elsewhere = (
            ""
            if path.is_absolute()
            else f"the path is taken from {Path.cwd()}: run the same command in the "
            "checkout that holds this world, or "
        )
        raise Refusal(
            "world",
            f"{folder}: holds no trained world (without {', '.join(missing)}); "
            f"{elsewhere}train one with: python -m examples.small_world "
            f"--out {folder}",
        )
    return load_checkpoint(path)


def load_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint in single precision on the CPU."""
    with blamed(folder / ABOUT):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if missing := {"model", "shape", "draft_width"} - about.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        shape = TargetShape(**about["shape"])
        target, drafter = Target(shape), Drafter(shape, about["draft_width"])
    with blamed(folder / WEIGHTS):
        tensors = load_file(folder / WEIGHTS)
        fill(target, tensors, "target")
        fill(drafter, tensors, "drafter")
    with blamed(folder / TOKENIZER):
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return Checkpoint(target.eval(), drafter.eval(), tokenizer, about)


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a refusal that names the file."""
    try:
        yield
    except Exception as error:  # tokenizers knows no other
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refusal(
            "world",
            f"{path}: is damaged, or not of this world ({reason}); fetch the world "
            "again, or train another with: python -m examples.small_world",
        ) from error


def fill(model: nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"{prefix}.{name}"])


def runner_shape(shape: TargetShape, dtype: torch.dtype) -> StackShape:
    """The target's shape as the runner of runners/torch_moe has it."""
    attention = AttentionSpec(
        shape.heads, shape.key_heads, shape.head_dim, qk_norm=False
    )
    moe = MoeSpec(shape.experts, shape.top_k, shape.expert_width)
    return StackShape(
        shape.hidden, shape.vocab, shape.layers, 0, 0, dtype, attention, moe
    )


@torch.no_grad()
def make_stack(target: Target, slots: tuple[int, int], noise: Noise) -> Stack:
    """The runner's layers with a target's weights, for batches of (requests, room).

    They take the type and the device of `noise`, whose values do not remain.
    """
    stack = Stack(runner_shape(target.shape, noise.block.dtype), slots, noise)
    stack.embedding.copy_(target.embedding)
    stack.head.copy_(target.head)
    for built, trained in zip(stack.moe, target.layers, strict=True):
        built.attention.qkv.copy_(trained.attention.qkv)
        built.attention.out.copy_(trained.attention.out)
        built.router.weight.copy_(trained.experts.router)
        built.experts.gate_up.copy_(trained.experts.gate_up)
        built.experts.down.copy_(trained.experts.down)
    return stack


def describe_engine(device: torch.device) -> Message:
    """Facts that make two measurements comparable."""
    return describe(ENGINE, __file__, device)


def describe_checkpoint(
    folder: str, checkpoint: Checkpoint, device: torch.device
) -> Message:
    """What a trace is of."""
    shape, engine = checkpoint.target.shape, describe_engine(device)
    weights = (Path(folder) / WEIGHTS).read_bytes()
    return {
        "model": checkpoint.about["model"],
        "experts": shape.experts,
        "top_k": shape.top_k,
        "layers": shape.layers,
        "engine": ENGINE,
        "engine_version": engine["engine_version"],
        "device": engine["device"],
        "threads": engine["threads"],
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
