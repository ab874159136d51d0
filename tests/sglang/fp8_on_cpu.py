"""A stand-in for FP8 kernels, which SGLang has for GPUs and AMX alone.

Weights are loaded in FP8 with their scales, and widened to the activations' type. As a
program this is the runner, and as a plug-in it serves an engine.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812
from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.fp8 import (
    Fp8Config,
    Fp8LinearMethod,
    Fp8MoEMethod,
)

from runners.protocol import serve_session
from runners.sglang_verify.session import Session


def widened(weight, scale, dtype):
    """Weights [..., n, k] times scales [..., n / block, k / block]."""
    for axis in (-2, -1):
        block = weight.shape[axis] // scale.shape[axis]
        scale = scale.repeat_interleave(block, axis)
    return (weight.float() * scale).to(dtype)


def linear(method, layer, x, bias=None):
    return F.linear(x, widened(layer.weight, layer.weight_scale_inv, x.dtype), bias)


def experts(method, layer, dispatch_output):
    x = dispatch_output.hidden_states
    wide = SimpleNamespace(
        w13_weight=widened(layer.w13_weight, layer.w13_weight_scale_inv, x.dtype),
        w2_weight=widened(layer.w2_weight, layer.w2_weight_scale_inv, x.dtype),
        num_experts=layer.num_experts,
    )
    out = moe_forward_native(
        wide, x, dispatch_output.topk_output, method.moe_runner_config
    )
    return StandardCombineInput(hidden_states=out)


for method, apply in ((Fp8LinearMethod, linear), (Fp8MoEMethod, experts)):
    method.apply = apply
    method.process_weights_after_loading = lambda method, layer: None


def register():
    """The entry point. In float32, tokens do not depend on the width of a forward."""
    Fp8Config.get_supported_act_dtypes = lambda _: [torch.float32]


if __name__ == "__main__":
    serve_session(Session)
