"""Stubs of SGLang's compiled kernels on a machine without a GPU.

SGLang's kernel wheel is built for GPUs. On a CPU, its EAGLE path asks for a dozen of
its functions, which are here in plain torch: made to be right and to be read, for tests
and for trying things out, not to be fast. `sglang_on_cpu` is how it is found.

Anything else that SGLang imports from here exists, and when called says that it is
missing.
"""

from collections.abc import Callable
from typing import Any

import torch

from .attention import decode_attention_cpu, extend_attention_cpu
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]

# SGLang calls the attention kernels as operators of torch. They are set by name, not
# registered: their arguments differ between the versions that this must serve.
for _operator in (decode_attention_cpu, extend_attention_cpu):
    setattr(torch.ops.sgl_kernel, _operator.__name__, _operator)


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no stub on a CPU (tests/sglang/stubs)"
        )

    return missing
