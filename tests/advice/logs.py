"""Lines that SGLang 0.5 and vLLM 0.20 log, shortened."""

SGLANG_START = (
    "[2026-07-21 08:20:11] server_args=ServerArgs(model_path='Qwen/Qwen3-30B-A3B', "
    "speculative_algorithm='EAGLE3', speculative_num_steps=3, "
    "speculative_eagle_topk=1, speculative_num_draft_tokens=4, "
    "disable_cuda_graph=False)\n"
    "[2026-07-21 08:21:55 TP0] Capture target verify CUDA graph begin. backend=full, "
    "num_tokens_per_bs=4, bs=[1, 2, 3, 4, 5, 6, 8], avail mem=7.77 GB\n"
)
SGLANG_STEP = (
    "[2026-07-21 08:22:40 TP0] Decode batch, #running-req: {running}, #token: 3894, "
    "token usage: 0.00, accept len: {length:.2f}, accept rate: 0.65, cuda graph: "
    "{graph}, gen throughput (token/s): 5452.63, #queue-req: 0,\n"
)
VLLM_START = (
    "(EngineCore pid=199) INFO 05-21 21:03:20 [core.py:109] Initializing a V1 LLM "
    "engine (v0.20.2) with config: model='a', speculative_config=SpeculativeConfig("
    "method='mtp', model='a', num_spec_tokens=3), tensor_parallel_size=1, "
    "enforce_eager=False, compilation_config={'cudagraph_mode': "
    "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'max_cudagraph_capture_size': 64}\n"
)
VLLM_PIECEWISE = (
    "(EngineCore pid=255) WARNING 05-01 16:30:32 [compilation.py:1390] "
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention "
    "backend FlashInferBackend (support: "
    "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
    "cudagraph_mode=PIECEWISE\n"
)
VLLM_STEP = (
    "(APIServer pid=1) INFO 05-21 21:05:12 [metrics.py:100] SpecDecoding metrics: Mean "
    "acceptance length: 2.50, Accepted throughput: 30.00 tokens/s, Drafted throughput: "
    "60.00 tokens/s, Accepted: 300 tokens, Drafted: 600 tokens, Per-position "
    "acceptance rate: 0.738, 0.450, 0.312, Avg Draft acceptance rate: 50.0%\n"
    "(APIServer pid=1) INFO 05-21 21:05:12 [loggers.py:257] Engine 000: Avg prompt "
    "throughput: 0.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs\n"
)


def sglang(lengths=(2.61, 2.67), graph=True, running=8, start=SGLANG_START):
    steps = (
        SGLANG_STEP.format(running=running, length=length, graph=graph)
        for length in lengths
    )
    return start + "".join(steps)


def vllm(running=8, start=VLLM_START):
    return start + 3 * VLLM_STEP.format(running=running)
