"""The model's shape as this runner reads it from the protocol, and random weights."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class StackShape:
    """Sizes of the layers to build; `attention` and `moe` as in configs/models."""

    hidden: int
    vocab: int
    moe_layers: int
    dense_layers: int
    dense_width: int
    dtype: torch.dtype
    attention: Any
    moe: Any

    @property
    def expert_bytes(self) -> int:
        return 3 * self.hidden * self.moe.expert_width * self.dtype.itemsize


def read_shape(model: dict[str, Any], layers: int) -> StackShape:
    """The shape of `layers` MoE layers of a model, with all of its dense layers."""
    return StackShape(
        hidden=model["hidden_size"],
        vocab=model["vocab_size"],
        moe_layers=layers,
        dense_layers=model["dense_layers"],
        dense_width=model["dense_width"],
        dtype=DTYPES[model["dtype"]],
        attention=SimpleNamespace(**model["attention"]),
        moe=SimpleNamespace(**model["moe"]),
    )


def not_built(model: dict[str, Any]) -> list[str]:
    """What of a model these layers do not have."""
    attention, moe = model["attention"], model["moe"]
    kinds = [other["kind"] for other in model["other_layers"] if other["layers"]]
    has = {
        f"layers of other kinds ({', '.join(kinds)})": kinds,
        "keys of another width than values": attention["qk_head_dim"],
        "a gate behind attention": attention["output_gate"],
        "a latent without a latent query": attention["kind"] == "mla"
        and not attention["q_lora_rank"],
        "experts of another width than the model": moe["expert_hidden"],
        "experts without a gate": not moe["gated"],
    }
    return [name for name, present in has.items() if present]


class RandomWeights:
    """Random weights at the speed of memory: one block of noise, copied around.

    The block's length is prime, so that no two experts get the same window of it.
    """

    LENGTH = 16_777_213

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        block = torch.empty(self.LENGTH, device=device, dtype=dtype)
        self.block = block.normal_(generator=generator)
        self.offset = 0

    def weight(self, *sizes: int) -> Tensor:
        """A weight of these sizes, scaled by 1 / sqrt(its last, or inner, size)."""
        out = self.block.new_empty(sizes)
        flat, done = out.view(-1), 0
        while done < len(flat):
            step = min(len(flat) - done, self.LENGTH - self.offset)
            flat[done : done + step] = self.block[self.offset : self.offset + step]
            done, self.offset = done + step, (self.offset + step) % self.LENGTH
        return out.mul_(1.0 / math.sqrt(sizes[-1]))


class MetaWeights(RandomWeights):
    """Weights without values, to be overwritten, or only counted in bytes."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.block = torch.empty(0, device=device, dtype=dtype)
        self.bytes = 0

    def weight(self, *sizes: int) -> Tensor:
        out = self.block.new_empty(sizes)
        self.bytes += out.nbytes
        return out
