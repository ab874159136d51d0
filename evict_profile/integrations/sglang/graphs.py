"""The widths that a server verifies: one attention backend and one set of graphs each.

A captured decode graph has one width, and an attention backend may have it built in
(fa3 sizes its metadata by it): m tokens on the graphs of N would run in eager mode, and
with fa3 be wrong. SGLang's adaptive speculation builds backends and graphs in the same
way for each step count.
"""

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.compat import assigned, overridden
from evict_profile.runtime import CostTable

DEFAULT_CAPTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""For a table that was measured without captured graphs, which has no capture sizes."""


def capture_sizes_of(
    table: CostTable, draft_tokens: int, asked: Collection[int] | None
) -> tuple[int, ...]:
    """Widths to choose from: asked for, or the table's; none above the whole tree."""
    covered = table.axes.capture_sizes or tuple(
        range(1, table.fit.domain["width"][1] + 1)
    )
    if not_covered := sorted(set(asked or ()) - set(covered)):
        known = ", ".join(map(str, table.axes.capture_sizes)) or f"1 to {covered[-1]}"
        raise ConfigError(
            f"EVICT_PROFILE_CAPTURE_SIZES has width {not_covered[0]}, and {table.path} "
            f"has widths {known}; measure it, or leave it out"
        )
    if asked and max(asked) > draft_tokens:
        raise ConfigError(
            f"EVICT_PROFILE_CAPTURE_SIZES has width {max(asked)}, and the server "
            f"drafts {draft_tokens} tokens with the root; leave it out, or raise "
            "--speculative-num-draft-tokens"
        )
    wanted = asked or {
        *(table.axes.capture_sizes or DEFAULT_CAPTURE_SIZES),
        draft_tokens,
    }
    widths = {width for width in wanted if width in covered and width <= draft_tokens}
    if not widths:
        raise ConfigError(
            f"{table.path} covers no width up to the server's {draft_tokens} draft "
            "tokens; measure smaller widths, or raise --speculative-num-draft-tokens"
        )
    return tuple(sorted(widths))


@dataclass(frozen=True)
class GraphState:
    """The attention backend that verifies one width, and its captured graphs, one a
    batch size; with the device memory and the time that building them took."""

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
    """Levels below the root that a tree of this width can have."""
    return min(num_steps, width - 1)


def swapped(model_runner: Any, state: GraphState) -> AbstractContextManager[None]:
    """Let a model runner verify with a state, and give it back its own."""
    return assigned(
        model_runner,
        attn_backend=state.attn_backend,
        decode_cuda_graph_runner=state.graph_runner,
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
    """Free memory of a GPU; 0 on a CPU."""
    if not str(device).startswith("cuda"):
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
