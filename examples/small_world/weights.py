"""The weights that come of a training, and what they are."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from examples.small_world.engine.checkpoint import ABOUT, WEIGHTS
from examples.small_world.engine.drafter import TargetShape
from examples.small_world.training import Models

MODEL = "model.yaml"


def weights(models: Models) -> dict[str, Tensor]:
    """The weights of both models by name, as they are stored."""
    return {
        f"{prefix}.{name}": weight.detach()
        for prefix, model in (("target", models.target), ("drafter", models.drafter))
        for name, weight in model.named_parameters()
    }


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
source: examples/small_world
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
