"""Whether SGLang loaded the model of the sweep."""

from types import SimpleNamespace
from typing import Any

import pytest

from evict_profile.config import load_model
from evict_profile.records import to_mapping
from runners.protocol import Refusal
from runners.sglang_verify.opening import check_loaded

MODEL = to_mapping(load_model("tiny-qwen3"))


def loaded(layers: int = 8, vocab: int = 2048, **changes: int) -> tuple[Any, Any]:
    """SGLang's modules of experts and its model config."""
    own = {"num_experts": 8, "top_k": 2, **changes}
    config = SimpleNamespace(hidden_size=1024, vocab_size=vocab)
    return [SimpleNamespace(**own) for _ in range(layers)], config


def test_the_sweeps_own_model_is_taken() -> None:
    check_loaded(MODEL, *loaded())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (loaded(layers=6), "MoE layers: 8 in the sweep's model, 6 in what SGLang"),
        (loaded(layers=0), "MoE layers: 8 in the sweep's model, 0 in what SGLang"),
        (loaded(vocab=99), "vocabulary: 2048 .* 99"),
        (loaded(num_experts=64), "experts: 8 .* 64"),
        (loaded(top_k=4), "top-k: 2 .* 4"),
    ],
)
def test_another_model_is_refused(other: tuple[Any, Any], says: str) -> None:
    with pytest.raises(Refusal, match=says):
        check_loaded(MODEL, *other)
