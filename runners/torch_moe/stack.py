"""The layers to measure, and what their memory takes, counted before it is taken."""

import os
import resource
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.protocol import Refusal
from runners.torch_moe.attention import AttnMetadata, make_attention
from runners.torch_moe.model import DenseLayer, MoeLayer
from runners.torch_moe.shape import MetaWeights, RandomWeights, StackShape

HEADROOM = 0.9
"""Share of the free memory that may be taken: activations need some as well."""

META = torch.device("meta")
"""Whose tensors take no memory."""


class Stack:
    """A model's MoE layers, and the rest: embedding, dense layers, norm, head."""

    def __init__(
        self, shape: StackShape, slots: tuple[int, int], noise: RandomWeights
    ) -> None:
        layers = range(shape.dense_layers, shape.dense_layers + shape.moe_layers)
        self.shape = shape
        self.dense = [
            DenseLayer(shape, make_attention(shape, i, slots, noise), noise)
            for i in range(shape.dense_layers)
        ]
        self.moe = [
            MoeLayer(shape, make_attention(shape, i, slots, noise), noise)
            for i in layers
        ]
        self.embedding = noise.weight(shape.vocab, shape.hidden)
        self.head = noise.weight(shape.vocab, shape.hidden)

    def run_layers(
        self, x: Tensor, meta: AttnMetadata, routes: Tensor, forced: bool
    ) -> Tensor:
        """As many MoE layers as there are routes [layers, T, k] over x [T, D]."""
        for layer, chosen in zip(self.moe, routes, strict=False):
            x = layer(x, meta, chosen, forced)
        return x

    def run_non_moe(self, token_ids: Tensor, meta: AttnMetadata) -> Tensor:
        """All but the MoE layers: logits [T, vocab] of token ids [T]."""
        x = F.embedding(token_ids, self.embedding)
        for layer in self.dense:
            x = layer(x, meta)
        return F.linear(F.rms_norm(x, x.shape[-1:]), self.head)


def layer_bytes(shape: StackShape, slots: tuple[int, int]) -> int:
    """Memory of one MoE layer with its KV cache."""
    blank = MetaWeights(META, shape.dtype)
    MoeLayer(shape, make_attention(shape, 0, slots, blank), blank)
    return blank.bytes


def non_moe_bytes(shape: StackShape, slots: tuple[int, int]) -> int:
    """Memory of embedding, head and dense layers with their KV caches."""
    blank = MetaWeights(META, shape.dtype)
    Stack(replace(shape, moe_layers=0), slots, blank)
    return blank.bytes


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken, of the GPU or of this process's limits."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    fields = dict(
        line.split(":") for line in Path("/proc/meminfo").read_text().splitlines()
    )
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        free = min(free, limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return min(free, _cgroup_free())


def _cgroup_free() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62
    return 1 << 62 if limit == "max" else int(limit) - used


def fitting_layers(
    shape: StackShape, slots: tuple[int, int], device: torch.device, kept: int = 0
) -> int:
    """MoE layers that fit in the free memory beside `kept` bytes and all else."""
    rest = non_moe_bytes(shape, slots) + kept
    room = free_bytes(device) * HEADROOM - rest
    count = int(room // layer_bytes(shape, slots))
    if count < 1:
        smaller = ", or --dtype bfloat16" if shape.dtype == torch.float32 else ""
        need = (rest + layer_bytes(shape, slots)) / 1e9
        raise Refusal(
            "memory",
            f"one layer with embedding and head needs {need:.1f} GB, and "
            f"{free_bytes(device) / 1e9:.1f} GB are free on {device}; choose a "
            f"smaller model, a shorter context or a smaller batch{smaller}",
        )
    return count
