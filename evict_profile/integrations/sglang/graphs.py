"""The widths that a server verifies: one attention backend and one set of graphs each.

Decode graphs and some backends (fa3's metadata) have a fixed width: others would run in
eager mode, with fa3 incorrectly. SGLang's adaptive speculation builds both by step
count in the same way.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from evict_profile.integrations.sglang.compat import assigned, option, overridden

logger = logging.getLogger("evict_profile.sglang")

SHARE = 0.5
"""The part of the free memory that widths may take; prefills need the rest."""


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


def build_state(
    model_runner: Any, width: int, num_steps: int, most: int | None = None
) -> GraphState:
    """Build and capture a width after the server's graphs, outside drafter contexts.

    Graphs serve batches of `most` requests, or of as many as the server's.
    """
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
            with capturing(model_runner, most):
                graphs = type(own)(model_runner, attn_backend=backend, **options)
    taken = free - free_bytes(model_runner.device)
    return GraphState(width, backend, graphs, max(0, taken), time.monotonic() - start)


def capturing(model_runner: Any, most: int | None) -> AbstractContextManager[None]:
    """Let graphs be captured only for batches of `most` requests."""
    if most is None:
        return nullcontext()
    config = option(model_runner.server_args, "cuda_graph_config")
    sizes = batches(model_runner.decode_cuda_graph_runner, most)
    return assigned(config.decode, bs=sizes)


def fitting(model_runner: Any, widths: Collection[int], most: int | None) -> list[int]:
    """The narrowest of the widths whose graphs have room beside each other."""
    own, free = model_runner.decode_cuda_graph_runner, free_bytes(model_runner.device)
    if own is None or not widths:
        return sorted(widths)
    backend, sizes = model_runner.attn_backend, batches(own, most)
    needs = {width: buffer_bytes(backend, sizes[-1], width) for width in sorted(widths)}
    totals = zip(needs, accumulate(needs.values()), strict=True)
    fits = [width for width, total in totals if total <= SHARE * free]
    logger.info(
        "evict-profile: capturing widths %s for batches to %d, %d graphs; buffers of "
        "widths: %s, and widths may take half of the %.1f GiB that are free",
        ", ".join(map(str, fits)) or "none",
        sizes[-1],
        len(fits) * len(sizes),
        mebibytes(needs),
        free / 2**30,
    )
    return fits


def batches(graph_runner: Any, most: int | None) -> list[int]:
    """The server's batch sizes up to the one that serves `most` requests."""
    sizes = sorted(graph_runner.capture_bs)
    return sizes if most is None else sizes[: bisect_left(sizes, most) + 1]


def buffer_bytes(backend: Any, requests: int, width: int) -> int:
    """What `init_cuda_graph_state` of SGLang's layers/attention takes for a width."""
    context, rows = requests * backend.max_context_len, requests * width
    name = type(backend).__name__
    if name == "TritonAttnBackend":  # int64 indices, uint8 mask; float32 outputs
        parts = backend.num_head * backend.max_kv_splits * (backend.v_head_dim + 1)
        return int(9 * width * context + 4 * rows * parts)
    if name == "FlashInferAttnBackend":  # int32 indices, uint8 mask
        each = 4 * backend.num_wrappers + 1
        return int(each * width * context + backend.workspace_buffer.nbytes)
    return int((width + 24) * context)  # fa3: bool mask, six int32 page tables


def mebibytes(needs: dict[int, int]) -> str:
    return ", ".join(f"{width}: {n / 2**20:.0f} MiB" for width, n in needs.items())


def spec_steps(width: int, num_steps: int) -> int:
    return min(num_steps, width - 1)


def swapped(model_runner: Any, state: GraphState) -> AbstractContextManager[None]:
    return assigned(
        model_runner,
        attn_backend=state.attn_backend,
        decode_cuda_graph_runner=state.graph_runner,
    )


def described(states: Collection[GraphState], device: str) -> str:
    each = mebibytes({s.width: s.memory_bytes for s in states})
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
