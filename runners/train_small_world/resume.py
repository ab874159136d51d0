"""Where training stands, on disk, and the weights that come of it.

A checkpoint is one safetensors file, weights and optimiser state together, replaced in
one move: whatever kills the process leaves the last one whole.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from runners.train_small_world.training import Models, Progress, Training
from runners.tree_decoding.checkpoint import ABOUT, WEIGHTS, fill
from runners.tree_decoding.target import TargetShape

CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.yaml"


class OtherTraining(Exception):
    """A folder holds a checkpoint of other sizes, another seed or another text."""


def weights(models: Models) -> dict[str, Tensor]:
    """The weights of both models by name, as they are stored."""
    return {
        f"{prefix}.{name}": weight.detach()
        for prefix, model in (("target", models.target), ("drafter", models.drafter))
        for name, weight in model.named_parameters()
    }


def save_checkpoint(folder: Path, training: Training, identity: str) -> None:
    """Replace the folder's checkpoint by where a training stands."""
    tensors = weights(training.models)
    states = training.optimiser.state_dict()["state"]
    for index, state in states.items():
        for name, value in state.items():
            tensors[f"optimiser.{index}.{name}"] = value
    fields = {"identity": identity, "progress": json.dumps(asdict(training.progress))}
    fresh = folder / f"{CHECKPOINT}.new"
    save_file({k: t.contiguous() for k, t in tensors.items()}, fresh, fields)
    fresh.replace(folder / CHECKPOINT)


def read_progress(folder: Path, identity: str) -> Progress:
    """Where the folder's checkpoint stands; the beginning, where there is none."""
    path = folder / CHECKPOINT
    if not path.exists():
        return Progress("target")
    with safe_open(path, "pt") as opened:
        fields = opened.metadata()
    if fields["identity"] != identity:
        raise OtherTraining(
            f"{path} was made with another recipe, seed, text or tokeniser: "
            f"{fields['identity']}, and not {identity}; choose another --out"
        )
    return Progress(**json.loads(fields["progress"]))


def restore(folder: Path, models: Models) -> None:
    """Take over the checkpoint's weights."""
    if (folder / CHECKPOINT).exists():
        tensors = load_file(folder / CHECKPOINT)
        fill(models.target, tensors, "target")
        fill(models.drafter, tensors, "drafter")


def restore_optimiser(folder: Path, training: Training) -> None:
    """Take over the checkpoint's optimiser state."""
    whole = training.optimiser.state_dict()
    for key, value in load_file(folder / CHECKPOINT).items():
        first, *rest = key.split(".")
        if first == "optimiser":
            whole["state"].setdefault(int(rest[0]), {})[rest[1]] = value
    training.optimiser.load_state_dict(whole)


def export(folder: Path, models: Models, about: dict[str, Any]) -> None:
    """Write the weights to use, and what they are."""
    halves = {n: t.to(torch.float16).contiguous() for n, t in weights(models).items()}
    save_file(halves, folder / WEIGHTS)
    shapes = {
        "shape": asdict(models.recipe.shape),
        "draft_width": models.recipe.draft_width,
    }
    text = json.dumps(shapes | about, indent=1) + "\n"
    (folder / ABOUT).write_text(text, encoding="utf-8")
    description = model_yaml(about["model"], models.recipe.shape)
    (folder / MODEL).write_text(description, encoding="utf-8")


def model_yaml(name: str, shape: TargetShape) -> str:
    """The target as configs/models describes models, for sweeps over it."""
    return f"""\
# The trained target beside this file, as `evict-profile profile --model` reads it.
name: {name}
source: runners/train_small_world
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
