"""Captured graphs of other verify widths than the one that SGLang started with.

A captured decode graph has one width, and an attention backend may have it built in
(fa3 sizes its metadata by it). So each width of the ladder has a backend and graphs of
its own, built the way SGLang's adaptive speculation builds them per step count, and
swapped in by assignment. Verifying m tokens with those of N would run in eager mode,
and with fa3 be wrong.
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
    """The attention backend that verifies one width, and its captured graphs.

    Attributes:
        width: tokens of one request, its root included.
        attn_backend: SGLang's attention backend for this width.
        graph_runner: the captured graphs, one a batch size; None in eager mode.
        memory_bytes: device memory that building it took; 0 on a CPU.
        build_s: time that building it took.
    """

    width: int
    attn_backend: Any
    graph_runner: Any
    memory_bytes: int = 0
    build_s: float = 0.0


def own_state(model_runner: Any, width: int) -> GraphState:
    """The state that SGLang itself built, for its full width."""
    return GraphState(
        width, model_runner.attn_backend, model_runner.decode_cuda_graph_runner
    )


def build_state(model_runner: Any, width: int, num_steps: int) -> GraphState:
    """Build, and on a GPU capture, what verifies a width.

    Call it after the server's own graphs were captured, outside the drafter's contexts.
    """
    start, free = time.monotonic(), free_bytes(model_runner.device)
    steps = spec_steps(width, num_steps)
    with overridden(
        model_runner.server_args,
        speculative_num_steps=steps,
        speculative_num_draft_tokens=width,
    ):
        # The flag stays on the model runner unless it is put back.
        with assigned(model_runner, init_new_workspace=True):
            backend = model_runner._get_attention_backend(init_new_workspace=True)
        graphs = _capture(model_runner, backend, width, steps)
    taken = free - free_bytes(model_runner.device)
    return GraphState(width, backend, graphs, max(0, taken), time.monotonic() - start)


def spec_steps(width: int, num_steps: int) -> int:
    """Levels below the root that a tree of this width can have."""
    return min(num_steps, width - 1)


def swapped(model_runner: Any, state: GraphState) -> AbstractContextManager[None]:
    """Let a model runner verify with a state, and give it back its own."""
    return assigned(
        model_runner,
        attn_backend=state.attn_backend,
        decode_cuda_graph_runner=state.graph_runner,
    )


def _capture(model_runner: Any, backend: Any, width: int, steps: int) -> Any:
    """Graphs of this width, where the server captured any of its own."""
    own = model_runner.decode_cuda_graph_runner
    if own is None:
        return None
    return type(own)(
        model_runner,
        attn_backend=backend,
        speculative_num_steps=steps,
        speculative_num_draft_tokens=width,
    )


def described(states: Collection[GraphState], device: str) -> str:
    """What the graphs of each width took, and what is left, for the server's log."""
    each = ", ".join(f"{s.width}: {s.memory_bytes / 2**20:.0f} MiB" for s in states)
    free = free_bytes(device)
    left = f", {free / 2**30:.1f} GiB of the GPU are left" if free else ""
    return (
        f"widths, and the memory that each took: {each}; "
        f"built in {sum(s.build_s for s in states):.1f} s{left}"
    )


def free_bytes(device: str) -> int:
    """Memory of a GPU that nobody has taken; 0 on a CPU."""
    if not str(device).startswith("cuda"):
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
