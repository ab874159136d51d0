"""The widths that a server verifies: one attention backend and one set of graphs each.

Decode graphs and some backends (fa3's metadata) have a fixed width: others would run in
eager mode, with fa3 incorrectly. SGLang's adaptive speculation builds both by step
count in the same way.
"""

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from evict_profile.integrations.sglang.compat import assigned, overridden


@dataclass(frozen=True)
class GraphState:
    """One width's attention backend and graphs by batch; memory and build time."""

    width: int
    attn_backend: Any
    graph_runner: Any
    memory_bytes: int = 0
    build_s: float = 0.0


def own_state(model_runner: Any, width: int) -> GraphState:
    return GraphState(
        width, model_runner.attn_backend, model_runner.decode_cuda_graph_runner
    )


def build_state(model_runner: Any, width: int, num_steps: int) -> GraphState:
    """Build and capture a width after the server's graphs, outside drafter contexts."""
    start, free = time.monotonic(), free_bytes(model_runner.device)
    own = model_runner.decode_cuda_graph_runner
    options = {
        "speculative_num_steps": spec_steps(width, num_steps),
        "speculative_num_draft_tokens": width,
    }
    with overridden(model_runner.server_args, **options):
        # The flag stays on the model runner unless it is put back.
        with assigned(model_runner, init_new_workspace=True):
            backend = model_runner._get_attention_backend(init_new_workspace=True)
        graphs = None
        if own is not None:
            graphs = type(own)(model_runner, attn_backend=backend, **options)
    taken = free - free_bytes(model_runner.device)
    return GraphState(width, backend, graphs, max(0, taken), time.monotonic() - start)


def spec_steps(width: int, num_steps: int) -> int:
    return min(num_steps, width - 1)


def swapped(model_runner: Any, state: GraphState) -> AbstractContextManager[None]:
    return assigned(
        model_runner,
        attn_backend=state.attn_backend,
        decode_cuda_graph_runner=state.graph_runner,
    )


def described(states: Collection[GraphState], device: str) -> str:
    each = ", ".join(f"{s.width}: {s.memory_bytes / 2**20:.0f} MiB" for s in states)
    free = free_bytes(device)
    left = f", {free / 2**30:.1f} GiB of the GPU are left" if free else ""
    return (
        f"widths, and the memory that each took: {each}; "
        f"built in {sum(s.build_s for s in states):.1f} s{left}"
    )


def free_bytes(device: str) -> int:
    if not str(device).startswith("cuda"):
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
