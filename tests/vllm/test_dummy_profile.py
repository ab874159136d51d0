"""vLLM's own dummy batch through its own routers: no expert, or the same for all.

vLLM times verification with dummy steps, whose tokens are all marked as padding and are
all token 0. Routers that skip padding give such a token no expert, the others give all
of them the same ones. Real tokens run most of the experts.
"""

import inspect

import pytest
import torch

from tests.vllm.test_contract import source

TOKENS, HIDDEN, EXPERTS, TOP_K = 64, 32, 128, 8


class OpsInTorch:
    """The one CUDA kernel in the way, restated: top-k of a softmax, -1 for padding.

    The router calls it with the mask; that the kernel writes -1 was read in its CUDA
    source and not run.
    """

    @staticmethod
    def topk_softmax(weights, ids, _, logits, renormalize, **mask):
        best = logits.softmax(dim=-1).topk(ids.shape[1], dim=-1)
        weights.copy_(best.values)
        ids.copy_(best.indices)
        if (padding := mask.get("is_padding")) is not None:
            ids[padding] = -1


@pytest.fixture
def experts_run(monkeypatch):
    """Distinct experts by a router of some tokens, of which some are padding."""
    from vllm.forward_context import ForwardContext, override_forward_context
    from vllm.model_executor.layers.fused_moe.router import fused_topk_router as fused
    from vllm.model_executor.layers.fused_moe.router import grouped_topk_router

    monkeypatch.setattr(fused, "ops", OpsInTorch)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(1000, HIDDEN, generator=generator)
    gate = torch.randn(HIDDEN, EXPERTS, generator=generator)

    def run(router, ids, padding):
        if router == "fused":
            made = fused.FusedTopKRouter(TOP_K, EXPERTS)
        else:
            groups = {"num_expert_group": 8, "topk_group": 4}
            groups["skip_padding"] = router == "grouped, skips padding"
            made = grouped_topk_router.GroupedTopKRouter(TOP_K, EXPERTS, **groups)
        hidden = embedding[ids]
        with override_forward_context(ForwardContext({}, {}, {}, is_padding=padding)):
            chosen = made._compute_routing(hidden, hidden @ gate, torch.int32)[1]
        return int(chosen[chosen >= 0].unique().numel())

    return run


@pytest.mark.parametrize(
    ("router", "skips", "experts"),
    [
        ("fused", "1", 0),
        ("grouped, skips padding", "1", 0),
        ("grouped", "1", TOP_K),
        # `VLLM_MOE_SKIP_PADDING`, on by default, is what the routers read.
        ("grouped, skips padding", "0", TOP_K),
    ],
)
def test_the_dummy_batch_runs_no_union(
    experts_run, monkeypatch, router, skips, experts
):
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    monkeypatch.setenv("VLLM_MOE_SKIP_PADDING", skips)
    buffers = InputBuffers(TOKENS, TOKENS, torch.device("cpu"))
    dummy = InputBatch.make_dummy(TOKENS, TOKENS, buffers)
    assert experts_run(router, dummy.input_ids.long(), dummy.is_padding) == experts
    generator = torch.Generator().manual_seed(0)
    real = torch.randint(1000, (TOKENS,), generator=generator)
    assert experts_run(router, real, None) > 100


def test_dummy_steps_are_padding_where_they_are_timed():
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    manager = adaptive.AdaptiveVerificationManager
    assert "is_profile" not in inspect.getsource(manager.batches_to_profile)
    text = source("v1.worker.gpu.model_runner")
    assert "is_padding=not is_profile" in text
    assert "self._dummy_run(**batch)" in text
    assert "is_profile: bool = False" in text
