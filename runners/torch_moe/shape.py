"""The model's shape as this runner reads it from the protocol."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Shape:
    """Sizes of the layers to build; `attention` and `moe` as in configs/models."""

    hidden: int
    vocab: int
    moe_layers: int
    dense_layers: int
    dense_width: int
    dtype: torch.dtype
    attention: SimpleNamespace
    moe: SimpleNamespace

    @property
    def expert_bytes(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.moe.expert_width * self.dtype.itemsize


def read_shape(model: dict[str, Any], layers: int) -> Shape:
    """The shape of `layers` MoE layers of a model, with all of its dense layers."""
    return Shape(
        hidden=model["hidden_size"],
        vocab=model["vocab_size"],
        moe_layers=layers,
        dense_layers=model["dense_layers"],
        dense_width=model["dense_width"],
        dtype=DTYPES[model["dtype"]],
        attention=SimpleNamespace(**model["attention"]),
        moe=SimpleNamespace(**model["moe"]),
    )
