"""Worlds on disk: checkpoints to continue from, and the weights to use.

A checkpoint is one safetensors file, weights and optimiser state together, replaced in
one move: whatever kills the process leaves the last one whole. The weights to use are
in half precision, beside the tokeniser and a JSON that says what they are.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from runners.protocol import Refusal
from runners.small_world.drafter import Drafter
from runners.small_world.target import Target, TargetShape
from runners.small_world.train import Progress, Training, World
from runners.torch_moe.shape import Noise, Shape, read_shape
from runners.torch_moe.stack import Stack

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
ABOUT = "world.json"
MODEL = "model.yaml"


class OtherWorld(Exception):
    """A folder holds a checkpoint of other sizes, another seed or another text."""


@dataclass(frozen=True)
class SmallWorld:
    """A trained world, ready to be used."""

    target: Target
    drafter: Drafter
    tokenizer: Tokenizer
    about: dict[str, Any]


def prefixed(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    """A model's weights by name, as they are stored."""
    return {f"{prefix}.{name}": t.detach() for name, t in model.named_parameters()}


def fill(model: nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    """Overwrite a model's weights by stored ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"{prefix}.{name}"])


def save_checkpoint(folder: Path, training: Training, identity: str) -> None:
    """Replace the folder's checkpoint by where a training stands."""
    world = training.world
    tensors = prefixed(world.target, "target") | prefixed(world.drafter, "drafter")
    states = training.optimiser.state_dict()["state"]
    for index, state in states.items():
        for name, value in state.items():
            tensors[f"optimiser.{index}.{name}"] = value
    fields = {"identity": identity, "progress": json.dumps(asdict(training.progress))}
    fresh = folder / f"{CHECKPOINT}.new"
    save_file({k: t.contiguous() for k, t in tensors.items()}, fresh, fields)
    fresh.replace(folder / CHECKPOINT)


def read_progress(folder: Path, identity: str) -> Progress:
    """Where the folder's checkpoint stands; the beginning, where there is none.

    Raises:
        OtherWorld: the checkpoint is of something else.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return Progress("target")
    with safe_open(path, "pt") as opened:
        fields = opened.metadata()
    if fields["identity"] != identity:
        raise OtherWorld(
            f"{path} was made with another recipe, seed, text or tokeniser: "
            f"{fields['identity']}, and not {identity}; choose another --out"
        )
    return Progress(**json.loads(fields["progress"]))


def restore(folder: Path, world: World) -> None:
    """Take over the checkpoint's weights."""
    if (folder / CHECKPOINT).exists():
        tensors = load_file(folder / CHECKPOINT)
        fill(world.target, tensors, "target")
        fill(world.drafter, tensors, "drafter")


def restore_optimiser(folder: Path, training: Training) -> None:
    """Take over the checkpoint's optimiser state."""
    whole = training.optimiser.state_dict()
    for key, value in load_file(folder / CHECKPOINT).items():
        first, *rest = key.split(".")
        if first == "optimiser":
            whole["state"].setdefault(int(rest[0]), {})[rest[1]] = value
    training.optimiser.load_state_dict(whole)


def export(folder: Path, world: World, about: dict[str, Any]) -> None:
    """Write the weights to use, and what they are."""
    tensors = prefixed(world.target, "target") | prefixed(world.drafter, "drafter")
    halves = {name: t.to(torch.float16).contiguous() for name, t in tensors.items()}
    save_file(halves, folder / WEIGHTS)
    shapes = {
        "shape": asdict(world.recipe.shape),
        "draft_width": world.recipe.draft_width,
    }
    text = json.dumps(shapes | about, indent=1) + "\n"
    (folder / ABOUT).write_text(text, encoding="utf-8")
    description = model_yaml(about["model"], world.recipe.shape)
    (folder / MODEL).write_text(description, encoding="utf-8")


def model_yaml(name: str, shape: TargetShape) -> str:
    """The target as configs/models describes models, for sweeps over it."""
    return f"""\
# The trained target beside this file, as `evict-profile profile --model` reads it.
name: {name}
source: runners/train_small_world.py
hidden_size: {shape.hidden}
num_layers: {shape.layers}
vocab_size: {shape.vocab}
dtype: float32
attention:
  num_heads: {shape.heads}
  num_kv_heads: {shape.key_heads}
  head_dim: {shape.head_dim}
moe:
  num_experts: {shape.experts}
  top_k: {shape.top_k}
  expert_width: {shape.expert_width}
"""


def load_world(folder: Path) -> SmallWorld:
    """A trained world, in single precision on the CPU.

    Raises:
        Refusal: one of its files is damaged.
    """
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
    return SmallWorld(target.eval(), drafter.eval(), tokenizer, about)


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Turn whatever reading a world's file raises into a refusal that names it."""
    try:
        yield
    except Exception as error:  # tokenizers knows no other
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refusal(
            "world",
            f"{path}: is damaged, or not of this world ({reason}); fetch the world "
            "again, or train another with: python runners/train_small_world.py",
        ) from error


def runner_shape(shape: TargetShape, dtype: str) -> Shape:
    """The target's shape as the runner of runners/torch_moe reads it."""
    attention = {
        "kind": "gqa",
        "num_heads": shape.heads,
        "num_kv_heads": shape.key_heads,
        "head_dim": shape.head_dim,
        "qk_norm": False,
        "sliding_window": 0,
        "sliding_every": 1,
        "q_lora_rank": 0,
        "kv_lora_rank": 0,
        "qk_rope_dim": 0,
    }
    moe = {
        "num_experts": shape.experts,
        "top_k": shape.top_k,
        "expert_width": shape.expert_width,
        "router": "softmax",
        "shared_width": 0,
        "groups": 1,
        "groups_kept": 1,
    }
    model = {
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab,
        "dense_layers": 0,
        "dense_width": 0,
        "dtype": dtype,
        "attention": attention,
        "moe": moe,
    }
    return read_shape(model, shape.layers)


@torch.no_grad()
def make_stack(target: Target, seats: tuple[int, int], noise: Noise) -> Stack:
    """The runner's layers with a target's weights, for batches of (requests, room).

    They take the type and the device of `noise`, whose values do not remain.
    """
    dtype = str(noise.block.dtype).removeprefix("torch.")
    stack = Stack(runner_shape(target.shape, dtype), seats, noise)
    stack.embedding.copy_(target.embedding)
    stack.head.copy_(target.head)
    for built, trained in zip(stack.moe, target.layers, strict=True):
        built.attention.qkv.copy_(trained.attention.qkv)
        built.attention.out.copy_(trained.attention.out)
        built.router.weight.copy_(trained.experts.router)
        built.experts.gate_up.copy_(trained.experts.gate_up)
        built.experts.down.copy_(trained.experts.down)
    return stack
