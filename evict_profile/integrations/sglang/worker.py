"""SGLang's EAGLE worker, verifying fewer tokens than were drafted.

Verifying m of N drafted tokens needs the scores, which SGLang discards; a stable sort;
`draft_token_num` and `spec_steps` of the smaller tree, built with the whole tree's
steps as stride of the parents; the worker's width while it verifies; then results and
cache slots of full width for the next draft.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.compat import assigned
from evict_profile.integrations.sglang.graphs import spec_steps
from evict_profile.integrations.sglang.serving import Serving

CREATE = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
BUILD = "sglang.srt.speculative.eagle_worker_v2.build_eagle_verify_input"


def truncating(base: Any, serving: Serving) -> Any:
    name = f"Truncating{base.__name__}"
    return type(name, (TruncatingWorker, base), {"evict_profile": serving})


_SglangWorker: Any = object  # SGLang's own class, set by `truncating`


class TruncatingWorker(_SglangWorker):  # type: ignore[misc]
    """SGLang's worker with trees cut before verification."""

    evict_profile: Serving

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evict_profile.begin(self)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        super().alloc_memory_pool(*args, **kwargs)
        self.evict_profile.allocate()

    def init_cuda_graphs(self) -> None:
        self.evict_profile.prepare()
        super().init_cuda_graphs()
        self.evict_profile.ready()

    def forward_batch_generation(self, batch: Any, *rest: Any, **kwargs: Any) -> Any:
        serving = self.evict_profile
        with serving.step(batch):
            if not serving.pauses(batch):
                return super().forward_batch_generation(batch, *rest, **kwargs)
            # SGLang then verifies roots alone, and keeps the drafter's cache.
            with assigned(self, speculative_num_steps=0):
                return super().forward_batch_generation(batch, *rest, **kwargs)

    def _build_trivial_verify_input(self, batch: Any) -> Any:
        serving, rows = self.evict_profile, len(batch.seq_lens)
        serving.set_token_weights(batch.seq_lens.new_zeros(rows, 0).float())
        with serving.graphs():
            made = super()._build_trivial_verify_input(batch)
        # Roots alone are int32 where scheduling does not overlap, and the kernel
        # that accepts takes nothing but int64.
        made.draft_token = made.draft_token.to(torch.int64)
        return made

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_idle():
            return super().verify(batch, *args, **kwargs)
        serving = self.evict_profile
        at_width = assigned(
            self,
            speculative_num_draft_tokens=serving.width,
            speculative_num_steps=spec_steps(serving.width, self.speculative_num_steps),
        )
        with serving.graphs(), at_width:
            result = super().verify(batch, *args, **kwargs)
        if serving.width < serving.full_width:
            _widen(self, batch, result, serving.width)
        serving.verified(batch, result)
        return result


def build_verify_input(
    serving: Serving,
    original: Callable[..., Any],
    batch: Any,
    draft_input: Any,
    parent_list: Tensor,
    index: Tensor,
    tokens: Tensor,
    draft_probs: Tensor | None,
    **kwargs: Any,
) -> Any:
    """The hook around `build_eagle_verify_input`: truncate, then build the smaller
    tree.

    The graphs are swapped in first, since the mask is written into their buffers. The
    tree kernel gets the drafted steps, the stride of `parent_list`.
    """
    if batch.forward_mode.is_idle() or not serving.active:
        rest = (parent_list, index, tokens, draft_probs)
        return original(batch, draft_input, *rest, **kwargs)
    drafted = serving.drafted(parent_list, index, tokens, kwargs["topk"])
    kept = serving.choose(batch, drafted)
    if kept.width == 1:
        return serving.worker._build_trivial_verify_input(batch)
    with serving.graphs():
        serving.set_token_weights(kept.path_prob)
        kwargs["num_draft_tokens"] = kept.width
        rest = (kept.parent_list, kept.index, kept.tokens, draft_probs)
        made = original(batch, draft_input, *rest, **kwargs)
    made.spec_steps = spec_steps(kept.width, kwargs["num_steps"])
    return made


def _widen(worker: Any, batch: Any, result: Any, width: int) -> None:
    full = worker.speculative_num_draft_tokens
    result.next_token_ids = _padded(result.next_token_ids, width, full)
    logits = result.logits_output
    if logits.hidden_states is not None:
        logits.hidden_states = _padded(logits.hidden_states, width, full)
    result.speculative_num_draft_tokens = full
    batch.out_cache_loc = _cache_slots(batch, full)


def _padded(rows: Tensor, width: int, full: int) -> Tensor:
    """[B * width, ...] to [B * full, ...], each request's rows in front."""
    requests, rest = len(rows) // width, rows.shape[1:]
    padded = rows.new_zeros((requests, full, *rest))
    padded[:, :width] = rows.view(requests, width, *rest)
    return padded.view(requests * full, *rest)


def _cache_slots(batch: Any, width: int) -> Tensor:
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func

    slots: Tensor = assign_extend_cache_locs_func(
        req_pool_indices=batch.req_pool_indices,
        req_to_token=batch.req_to_token_pool.req_to_token,
        start_offset=batch.seq_lens,
        end_offset=batch.seq_lens + width,
        batch_size=len(batch.seq_lens),
        draft_token_num=width,
        device=batch.device,
    )
    return slots
