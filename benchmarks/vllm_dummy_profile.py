"""What vLLM's start-up profile routes of an MoE, and what its budget then decides.

vLLM prices verification with dummy steps, whose tokens are all marked as padding and
are all token 0. Routers that skip padding give such a token no expert, the others give
all of them the same ones. Neither reads what verification reads: the union of many
tokens' experts. This script runs vLLM's own dummy batch, routers and budget function
on a CPU.

    python benchmarks/vllm_dummy_profile.py

needs vLLM in the same environment (docs/how-to/vllm.md says how without a GPU).
The three curves that the budget is asked with are one composed table's: at the union of
its activation curve, with all tokens alike, and with no routed expert.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from evict_profile.io import data_root
from evict_profile.table import CostTable

TABLE = (
    "cost_tables/composed/nvidia-h100-80gb-hbm3/qwen3-30b-a3b/"
    "vllm-0.24.0-bfloat16-tp1-ep1/1.0.0.json"
)
TOKENS, HIDDEN, EXPERTS, TOP_K = 64, 32, 128, 8
DRAFTS, BATCHES = 7, (1, 4, 16, 64)
CONFIDENCES = (0.6, 0.75, 0.9)


def experts_run(router: str, skip_padding: bool = True) -> tuple[int, int]:
    """Distinct experts of vLLM's dummy batch: as profiled, and as real random tokens.

    Args:
        router: "fused", as of Qwen3-MoE, or "grouped", as of DeepSeek-V3.
        skip_padding: of the grouped router; vLLM sets it with DeepEP v2 kernels alone.
    """
    import torch
    from vllm.forward_context import ForwardContext, override_forward_context
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    buffers = InputBuffers(TOKENS, TOKENS, torch.device("cpu"))
    batch = InputBatch.make_dummy(TOKENS, TOKENS, buffers)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(1000, HIDDEN, generator=generator)
    gate = torch.randn(HIDDEN, EXPERTS, generator=generator)
    counts = []
    for ids, padding in (
        (batch.input_ids.long(), batch.is_padding),
        (torch.randint(1000, (TOKENS,), generator=generator), None),
    ):
        hidden = embedding[ids]
        context = ForwardContext({}, {}, {}, is_padding=padding)
        with override_forward_context(context):
            chosen = _routed(router, skip_padding, hidden, hidden @ gate)
        counts.append(int(chosen[chosen >= 0].unique().numel()))
    return counts[0], counts[1]


def _routed(router: str, skip_padding: bool, hidden: Any, logits: Any) -> Any:
    """Experts by one of vLLM's own routers, int32 [tokens, top_k]; -1 runs none."""
    import torch
    from vllm.model_executor.layers.fused_moe.router import (
        fused_topk_router,
        grouped_topk_router,
    )

    if router == "fused":
        made = fused_topk_router.FusedTopKRouter(TOP_K, EXPERTS)
        kept, fused_topk_router.ops = fused_topk_router.ops, _OpsInTorch
        try:
            return made._compute_routing(hidden, logits, torch.int32)[1]
        finally:
            fused_topk_router.ops = kept
    made = grouped_topk_router.GroupedTopKRouter(
        TOP_K, EXPERTS, num_expert_group=8, topk_group=4, skip_padding=skip_padding
    )
    return made._compute_routing(hidden, logits, torch.int32)[1]


class _OpsInTorch:
    """The one CUDA kernel in the way, restated: top-k of a softmax, -1 for padding.

    The router calls it with the mask; that the kernel writes -1 was read in its CUDA
    source and not run.
    """

    @staticmethod
    def topk_softmax(
        weights: Any, ids: Any, _: Any, logits: Any, renormalize: bool, **mask: Any
    ) -> None:
        best = logits.softmax(dim=-1).topk(ids.shape[1], dim=-1)
        weights.copy_(best.values)
        ids.copy_(best.indices)
        if (padding := mask.get("is_padding")) is not None:
            ids[padding] = -1


@dataclass(frozen=True)
class Decision:
    """What the budget keeps by one curve, judged by the true one.

    Attributes:
        drafts: kept a request, mean.
        loss: of committed tokens a second, against deciding by the true curve.
    """

    drafts: float
    loss: float


def curves_ms(table: CostTable, batch: int, context: int) -> Mapping[str, np.ndarray]:
    """Step cost by tokens, float64 [T + 1], as it is and as dummy steps see it."""
    tokens = np.arange(table.max_tokens(batch) + 1, dtype=np.float64)
    tokens = np.maximum(tokens, batch)
    unions = {
        "true": table.activation.at(tokens, batch),
        "all tokens alike": np.full(len(tokens), float(table.model.moe.top_k)),
        "no expert": np.zeros(len(tokens)),
    }
    return {
        name: table.cost.price(tokens, union, context, batch) / 1e3
        for name, union in unions.items()
    }


def decide(
    true_ms: np.ndarray, seen_ms: np.ndarray, confidences: np.ndarray, draft_ms: float
) -> Decision:
    """vLLM's own budget by the curve it sees.

    Args:
        confidences: float64 [requests, drafts].
    """
    kept = [_kept(curve, confidences, draft_ms) for curve in (true_ms, seen_ms)]
    batch = len(confidences)
    survival = np.sort(np.cumprod(confidences, axis=1).ravel())[::-1]
    tokens = batch + np.concatenate(([0.0], np.cumsum(survival)))
    best, own = (tokens[k] / (draft_ms + true_ms[batch + k]) for k in kept)
    return Decision(kept[1] / batch, 1.0 - own / best)


def _kept(curve_ms: np.ndarray, confidences: np.ndarray, draft_ms: float) -> int:
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    batch, drafts = confidences.shape
    made: Any = object.__new__(adaptive.AdaptiveVerificationManager)
    made.num_speculative_steps, made.num_bonus_tokens = drafts, 1
    made._max_total_logits, made._stale_idx = 10**6, 0
    made._stale_confidences = [SimpleNamespace(np=confidences)]
    made.req_states = SimpleNamespace(
        req_id_to_index={str(i): i for i in range(batch)},
        num_computed_tokens_np=np.full(batch, 100),
        prefill_len=SimpleNamespace(np=np.full(batch, 10)),
    )
    last = len(curve_ms) - 1
    made.cost_tables = adaptive.build_cost_tables_from_curves(
        [(1, draft_ms)],
        [(n, float(curve_ms[n])) for n in range(1, last + 1)],
        batch,
        last,
        last,
    )
    requests = {str(i): drafts + 1 for i in range(batch)}
    named = {name: [0] * drafts for name in requests}
    return int(made.get_num_tokens(requests, named)) - batch


def decisions(draft_ms: float = 1.0) -> Iterator[tuple[float, int, str, Decision]]:
    """What each curve makes the budget keep, by confidence and batch."""
    table = CostTable.load(data_root() / TABLE)
    for confidence in CONFIDENCES:
        for batch in BATCHES:
            drawn = np.full((batch, DRAFTS), confidence)
            curves = curves_ms(table, batch, min(table.axes.context))
            for name, seen in curves.items():
                yield (
                    confidence,
                    batch,
                    name,
                    decide(curves["true"], seen, drawn, draft_ms),
                )


def main() -> None:
    """Print the experts that run, and the decisions."""
    for router, skips in (("fused", True), ("grouped", True), ("grouped", False)):
        dummy, real = experts_run(router, skips)
        mask = "" if skips else ", padding not skipped"
        print(f"{router} router{mask}: dummy batch {dummy}, real tokens {real} experts")
    print("\nconfidence  batch  curve             drafts kept  loss")
    for confidence, batch, name, made in decisions():
        where = f"{confidence:10}  {batch:5}  {name:16}"
        print(f"{where}  {made.drafts:11.2f}  {made.loss:.1%}")


if __name__ == "__main__":
    main()
