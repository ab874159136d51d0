"""A trained target with its drafter, from disk: weights, tokeniser, what they are.

The weights are in half precision. examples/small_world makes them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from evict_profile.config.model import AttentionSpec, MoeSpec
from evict_profile.errors import ConfigError
from evict_profile.traces import TraceInfo
from examples.small_world.engine.drafter import Drafter, TargetShape
from runners.device import describe
from runners.protocol import Message
from runners.torch_moe.shape import MetaWeights, StackShape
from runners.torch_moe.stack import Stack

WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
ABOUT = "world.json"
ENGINE = "tree_decoding"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Checkpoint:
    """A trained target and its drafter, ready to be used."""

    shape: TargetShape
    stack: Stack
    drafter: Drafter
    tokenizer: Tokenizer
    about: dict[str, Any]


def open_checkpoint(folder: Path, device: torch.device) -> Checkpoint:
    """The checkpoint in a folder."""
    files = (ABOUT, WEIGHTS, TOKENIZER)
    if missing := [name for name in files if not (folder / name).is_file()]:
        # A sweep, and so a table, names its checkpoint as seen from the checkout.
        elsewhere = (
            ""
            if folder.is_absolute()
            else f"the path is taken from {Path.cwd()}: run the same command in the "
            "checkout that holds this world, or "
        )
        raise ConfigError(
            f"{folder}: holds no trained world (without {', '.join(missing)}); "
            f"{elsewhere}train one with: python -m examples.small_world train "
            f"--out {folder}"
        )
    return load_checkpoint(folder, device)


@torch.no_grad()
def load_checkpoint(folder: Path, device: torch.device = CPU) -> Checkpoint:
    """A checkpoint in single precision."""
    with damaged(folder / ABOUT):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if missing := {"model", "shape", "draft_width"} - about.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        shape = TargetShape(**about["shape"])
        drafter = Drafter(shape, about["draft_width"])
    with damaged(folder / WEIGHTS):
        tensors = load_file(folder / WEIGHTS)
        stack = load_stack(shape, tensors, device)
        for name, parameter in drafter.named_parameters():
            parameter.copy_(tensors[f"drafter.{name}"])
    with damaged(folder / TOKENIZER):
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return Checkpoint(shape, stack, drafter.eval().to(device), tokenizer, about)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a sentence that names the file."""
    try:
        yield
    except Exception as error:  # tokenizers knows no other
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{path}: is damaged, or not of this world ({reason}); fetch the world "
            "again, or train another with: python -m examples.small_world train"
        ) from error


def load_stack(
    shape: TargetShape,
    tensors: Mapping[str, Tensor],
    device: torch.device = CPU,
    slots: tuple[int, int] = (1, 1),
) -> Stack:
    """The target in the layers of runners/torch_moe, for (requests, room)."""
    stack = Stack(stack_shape(shape), slots, MetaWeights(device, torch.float32))
    into = {"embedding": stack.embedding, "head": stack.head}
    for index, layer in enumerate(stack.moe):
        own = {
            "attention.qkv": layer.attention.qkv,
            "attention.out": layer.attention.out,
            "experts.router": layer.router.weight,
            "experts.gate_up": layer.experts.gate_up,
            "experts.down": layer.experts.down,
        }
        into |= {f"layers.{index}.{name}": weight for name, weight in own.items()}
    for name, weight in into.items():
        weight.copy_(tensors[f"target.{name}"])
    return stack


def stack_shape(shape: TargetShape) -> StackShape:
    """The target's shape as runners/torch_moe has it."""
    attention = AttentionSpec(
        shape.heads, shape.key_heads, shape.head_dim, qk_norm=False
    )
    moe = MoeSpec(shape.experts, shape.top_k, shape.expert_width)
    dense = {"dense_layers": 0, "dense_width": 0}
    return StackShape(
        shape.hidden,
        shape.vocab,
        shape.layers,
        **dense,
        dtype=torch.float32,
        attention=attention,
        moe=moe,
    )


def describe_engine(device: torch.device) -> Message:
    """Facts that make two measurements comparable."""
    return describe(ENGINE, __file__, device)


def describe_checkpoint(
    folder: Path, checkpoint: Checkpoint, device: torch.device
) -> TraceInfo:
    """What a trace is of."""
    shape, engine = checkpoint.shape, describe_engine(device)
    weights = (folder / WEIGHTS).read_bytes()
    return TraceInfo(
        model=checkpoint.about["model"],
        experts=shape.experts,
        top_k=shape.top_k,
        layers=shape.layers,
        engine=ENGINE,
        engine_version=engine["engine_version"],
        device=engine["device"],
        threads=engine["threads"],
        weights_sha256=hashlib.sha256(weights).hexdigest(),
    )
