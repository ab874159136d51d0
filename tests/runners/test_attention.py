"""The kernel of attention is asked for with what attention really hands over."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend

from runners.torch_moe.attention import KERNELS, AttnMetadata, kernel_of, make_attention
from runners.torch_moe.attention import make_metadata as seat_of
from runners.torch_moe.shape import Noise, Shape

BATCH, WIDTH, CONTEXT = 2, 3, 12
SLOTS = (BATCH, CONTEXT + WIDTH)
CPU = torch.device("cpu")
Layout = tuple[torch.Size, tuple[int, ...]]


def layout(*tensors: torch.Tensor) -> list[Layout]:
    """Sizes and strides, by which a kernel is picked."""
    return [(tensor.shape, tensor.stride()) for tensor in tensors]


@pytest.mark.parametrize("changes", [{}, {"mla": True}, {"sliding_window": 4}])
def test_it_is_asked_with_the_layouts_that_run(
    small: Callable[..., Shape],
    noise: Noise,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """Queries, keys, values and mask, with and without a window or a latent cache."""
    shape = small(**changes)
    attention = make_attention(shape, 0, SLOTS, noise)
    meta: AttnMetadata = seat_of(shape, BATCH, WIDTH, CONTEXT, CPU)
    ran, asked = [], []
    attend = F.scaled_dot_product_attention

    def run(q: Any, k: Any, v: Any, attn_mask: Any, scale: Any) -> torch.Tensor:
        ran.extend(layout(q, k, v, attn_mask))
        out: torch.Tensor = attend(q, k, v, attn_mask=attn_mask, scale=scale)
        return out

    def pick(*given: torch.Tensor) -> int:
        asked.extend(layout(*given))
        return 3

    monkeypatch.setattr(F, "scaled_dot_product_attention", run)
    monkeypatch.setattr(torch, "_fused_sdp_choice", pick)
    attention(noise.weight(BATCH * WIDTH, shape.hidden), meta)
    assert kernel_of(attention, meta) == "cudnn"
    assert asked == ran


def test_kernels_have_torch_s_numbers() -> None:
    """Else a table would name another kernel than ran."""
    names = {"math": "MATH", "flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
    names |= {"efficient": "EFFICIENT_ATTENTION", "overrideable": "OVERRIDEABLE"}
    for number, name in KERNELS.items():
        assert getattr(SDPBackend, names[name]).value == number
