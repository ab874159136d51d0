"""Graphs of a width take the batches and the memory that the plug-in expects."""

from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from evict_profile.integrations.sglang.graphs import buffer_bytes, capturing
from tests.sglang.engine import MODELS

LAYERS = "sglang.srt.layers.attention."
WIDTH, REQUESTS, CONTEXT = 6, 16, 40_960


class Unallocated(TorchFunctionMode):
    """Makes tensors without memory, on any device, and sums their bytes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = dict(kwargs or {})
        if "device" in given:
            made = function(*args, **{**given, "device": "meta"})
            self.bytes += made.nbytes
            return made
        if function is torch.Tensor.__setitem__:
            return None
        return function(*args, **given)


@pytest.fixture
def published():
    """SGLang's options of a server, resolved as its processes have them."""
    from sglang.srt.server_args import ServerArgs

    from runners.sglang_verify.server import _publish

    args = ServerArgs(
        model_path=str(MODELS / "target"),
        device="cpu",
        skip_tokenizer_init=True,
        cuda_graph_bs_decode=[1, 2, 4, 8, 16, 24, 32],
    )
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    _publish(args, 0)
    return args


def test_graphs_are_captured_for_the_batches_that_are_asked_for(published):
    from sglang.srt.model_executor.runner.base_cuda_graph_runner import (
        get_batch_sizes_to_capture,
    )

    def sizes():
        return get_batch_sizes_to_capture(runner, WIDTH)[0]

    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(size=48), server_args=published
    )
    before = sizes()
    runner.decode_cuda_graph_runner = SimpleNamespace(capture_bs=before)
    with capturing(runner, 9):
        assert sizes() == [1, 2, 4, 8, 16]
    with capturing(runner, None):
        assert sizes() == before == [1, 2, 4, 8, 16, 24, 32]
    assert sizes() == before


TRITON = {
    "num_head": 32,
    "max_kv_splits": 8,
    "v_head_dim": 128,
    "swa_v_head_dim": None,
    "lean_total_programs": 132,
    "lean_block_m": 16,
    "sliding_window_size": None,
    "use_sliding_window_kv_pool": False,
    "kv_index_translator": SimpleNamespace(is_translating=False),
    "dllm_attention": None,
}
FLASHINFER = {
    "num_wrappers": 1,
    "use_sliding_window_kv_pool": False,
    "kv_indptr": [torch.zeros(1)],
    "workspace_buffer": torch.empty(384 << 20, dtype=torch.uint8, device="meta"),
}
FA3 = {
    "page_size": 1,
    "topk": 8,
    "has_local_attention": False,
    "attention_chunk_size": None,
    "use_sliding_window_kv_pool": False,
    "fa_impl_ver": 3,
    "speculative_step_id": 0,
}


@pytest.mark.parametrize(
    ("module", "name", "parts"),
    [
        ("triton_backend", "TritonAttnBackend", TRITON),
        ("flashinfer_backend", "FlashInferAttnBackend", FLASHINFER),
        ("flashattention_backend", "FlashAttentionBackend", FA3),
    ],
)
def test_the_buffers_of_a_width_take_the_memory_that_is_foretold(
    module, name, parts, monkeypatch
):
    """Within 6 %, by SGLang's own method on tensors without memory."""
    base = getattr(pytest.importorskip(LAYERS + module), name)
    from sglang.srt.layers.attention import verify_mask

    full = verify_mask.TreeMaskMode.FULL_MASK  # a GPU's
    monkeypatch.setattr(verify_mask, "default_tree_mask_mode", lambda: full)
    backend = object.__new__(type(name, (base,), {"__getattr__": lambda *_: None}))
    vars(backend).update(
        parts,
        device="cuda",
        max_context_len=CONTEXT,
        num_draft_tokens=WIDTH,
        speculative_num_draft_tokens=WIDTH,
        is_draft_runner=False,
        skip_prefill=False,
    )
    with Unallocated() as made:
        backend.init_cuda_graph_state(REQUESTS, REQUESTS * WIDTH)
    workspace = parts.get("workspace_buffer", torch.empty(0)).nbytes
    foretold = buffer_bytes(backend, REQUESTS, WIDTH)
    assert foretold == pytest.approx(made.bytes + workspace, rel=0.06)
