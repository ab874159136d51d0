"""Small layers in float32, in which rounding hides no mistake."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from runners.torch_moe.shape import Noise, StackShape, read_shape

GQA = {
    "kind": "gqa",
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "qk_norm": True,
    "sliding_window": 0,
    "sliding_every": 2,
    "q_lora_rank": 0,
    "kv_lora_rank": 0,
    "qk_rope_dim": 0,
}
MLA = {
    **GQA,
    "kind": "mla",
    "num_kv_heads": 4,
    "qk_norm": False,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_rope_dim": 4,
}
MOE = {
    "num_experts": 8,
    "top_k": 2,
    "expert_width": 16,
    "router": "softmax",
    "shared_width": 0,
    "groups": 1,
    "groups_kept": 1,
}


class SmallNoise(Noise):
    """Less of it than the runner makes."""

    LENGTH = 10_007


@pytest.fixture
def noise() -> Noise:
    return SmallNoise(torch.device("cpu"), torch.float32, seed=3)


@pytest.fixture(scope="session")
def small() -> Callable[..., StackShape]:
    """Builds a small shape: `small(layers=1, mla=True, groups=4, ...)`."""

    def build(layers: int = 1, mla: bool = False, **changes: Any) -> StackShape:
        base = {**(MLA if mla else GQA)}
        attention = {k: changes.get(k, v) for k, v in base.items()}
        moe = {k: changes.get(k, v) for k, v in MOE.items()}
        model = {
            "hidden_size": 32,
            "vocab_size": 50,
            "dense_layers": changes.get("dense_layers", 0),
            "dense_width": changes.get("dense_width", 0),
            "dtype": "float32",
            "attention": attention,
            "moe": moe,
        }
        return read_shape(model, layers)

    return build


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The runner asks for one thread; tests leave the process as they found it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
