"""A vLLM server's model runner, without a GPU: the real manager, and facts of a config.

The manager's own constructor makes CUDA streams; the attributes that its budget reads
are set by hand, and `test_contract` holds them to the source.
"""

from types import SimpleNamespace

import numpy as np

DRAFTS = 3
REQUESTS = 4
CAPTURED = [1, 2, 4, 8, 16]


def make_manager(requests=REQUESTS, drafts=DRAFTS):
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    made = object.__new__(adaptive.AdaptiveVerificationManager)
    made.req_states = SimpleNamespace(
        max_num_reqs=requests,
        max_num_batched_tokens=256,
        num_speculative_steps=drafts,
        req_id_to_index={str(i): i for i in range(requests)},
        num_computed_tokens_np=np.full(requests, 100),
        prefill_len=SimpleNamespace(np=np.full(requests, 10)),
    )
    made.num_speculative_steps = drafts
    made.num_bonus_tokens = 1
    made._max_total_logits = 10_000
    made._cudagraph_limit = CAPTURED[-1]
    made._stale_idx = 0
    confidences = np.ones((requests, drafts), np.float32)
    made._stale_confidences = [SimpleNamespace(np=confidences) for _ in range(2)]
    made.cost_tables = adaptive.build_cost_tables_from_curves(
        [(1, 0.5), (requests, 0.7)], [(n, 5.0) for n in CAPTURED], requests, 256
    )
    return made


def make_runner(manager, model, **facts):
    """What the plug-in reads of a model runner; the key is that of the known run."""
    config = SimpleNamespace(
        dtype="torch.bfloat16",
        quantization=None,
        get_hidden_size=lambda: facts.get("hidden", model.hidden_size),
        get_total_num_hidden_layers=lambda: model.num_layers,
        get_vocab_size=lambda: model.vocab_size,
        get_num_experts=lambda: model.moe.num_experts,
        get_num_experts_per_tok=lambda: model.moe.top_k,
    )
    return SimpleNamespace(
        adaptive_verification=manager,
        model_config=config,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=facts.get("tp", 1),
            data_parallel_size=1,
            enable_expert_parallel=False,
        ),
        cudagraph_manager=SimpleNamespace(captured_token_counts=lambda: CAPTURED),
    )


def drafts_kept(manager, confidences):
    """What vLLM's budget function keeps of drafts with these confidences."""
    count, drafts = len(confidences), manager.num_speculative_steps
    manager._stale_confidences[0].np[:count] = confidences
    tokens = manager.get_num_tokens(
        {str(i): drafts + 1 for i in range(count)},
        {str(i): [0] * drafts for i in range(count)},
    )
    return int(tokens) - count
