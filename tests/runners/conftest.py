"""Small layers in float32, in which rounding hides no mistake."""

from typing import Any

import pytest
import torch

from evict_profile.config import AttentionSpec, MoeSpec
from evict_profile.records import to_mapping
from runners.torch_moe.shape import RandomWeights, read_shape

GQA = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=True)
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_dim": 4}
MLA = AttentionSpec(num_heads=4, num_kv_heads=4, head_dim=8, kind="mla", **LATENT)
SIZES: dict[str, Any] = {"hidden_size": 32, "vocab_size": 50, "dtype": "float32"}
SIZES |= {"dense_layers": 0, "dense_width": 0}
MOE = MoeSpec(num_experts=8, top_k=2, expert_width=16)


class SmallWeights(RandomWeights):
    """Less of it than the runner makes."""

    LENGTH = 10_007


@pytest.fixture
def noise():
    return SmallWeights(torch.device("cpu"), torch.float32, seed=3)


@pytest.fixture(scope="session")
def small():

    def build(layers=1, mla=False, **changes):
        attention, moe = to_mapping(MLA if mla else GQA), to_mapping(MOE)
        model = {**SIZES, "attention": attention, "moe": moe}
        for sizes in (model, attention, moe):
            sizes |= {name: changes[name] for name in sizes.keys() & changes.keys()}
        return read_shape(model, layers)

    return build


@pytest.fixture(autouse=True)
def threads():
    """The runner asks for one thread; tests leave the process as they found it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
