"""SGLang's EAGLE worker, verifying fewer tokens than were drafted.

Verifying m of N drafted tokens needs the scores, which SGLang discards; a stable sort;
`draft_token_num` and `spec_steps` of the smaller tree, built with the whole tree's
steps as stride of the parents; the worker's width while it verifies; then results and
cache slots of full width for the next draft.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.compat import assigned, check_accepts
from evict_profile.integrations.sglang.graphs import spec_steps
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.tree import whole_chain

CREATE = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
BUILD = "sglang.srt.speculative.eagle_worker_v2.build_eagle_verify_input"


def truncating(base: Any, serving: Serving) -> Any:
    name = f"Truncating{base.__name__}"
    return type(name, (TruncatingWorker, base), {"evict_profile": serving})


_SglangWorker: Any = object  # `truncating` puts SGLang's own class in its place.


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
            if serving.drafts(batch):
                return super().forward_batch_generation(batch, *rest, **kwargs)
            # SGLang then verifies roots alone, and keeps the drafter's cache.
            with assigned(self, speculative_num_steps=0):
                return super().forward_batch_generation(batch, *rest, **kwargs)

    def _build_trivial_verify_input(self, batch: Any) -> Any:
        with self.evict_profile.graphs():
            made = super()._build_trivial_verify_input(batch)
        # Roots alone are int32 where scheduling does not overlap, and the kernel
        # that accepts takes nothing but int64.
        made.draft_token = made.draft_token.to(torch.int64)
        return made

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_idle():
            return super().verify(batch, *args, **kwargs)
        serving, width = self.evict_profile, self.evict_profile.width
        at_width = assigned(
            self,
            speculative_num_draft_tokens=width,
            speculative_num_steps=batch.spec_info.spec_steps,
        )
        if width < serving.full_width:
            _plan_again(batch.spec_info)
        with serving.graphs(), at_width:
            result = super().verify(batch, *args, **kwargs)
        if width < serving.full_width:
            _widen(batch, result, width, serving.full_width)
            batch.out_cache_loc = serving.slots
        serving.verified(batch, result)
        return result


def check_overrides(base: Any) -> None:
    for name, own in vars(TruncatingWorker).items():
        if inspect.isfunction(own):
            taken = inspect.signature(getattr(base, name))
            check_accepts(own, taken, f"{base.__name__}.{name}")


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
    tree = parent_list, index, tokens
    if serving.fewer.chosen and kwargs["topk"] == 1:
        tree = whole_chain(tokens, serving.full_width - 1)
        kwargs["num_steps"] = serving.full_width - 1
    if batch.forward_mode.is_idle() or not serving.active:
        return original(batch, draft_input, *tree, draft_probs, **kwargs)
    kept = serving.choose(batch, *tree, kwargs["topk"])
    with serving.graphs():
        if kept is None:
            return original(batch, draft_input, *tree, draft_probs, **kwargs)
        if kept.width == 1:
            return serving.worker._build_trivial_verify_input(batch)
        kwargs["num_draft_tokens"] = kept.width
        tree = kept.parent_list, kept.index, kept.tokens
        made = original(batch, draft_input, *tree, draft_probs, **kwargs)
    made.spec_steps = spec_steps(kept.width, kwargs["num_steps"])
    return made


def _plan_again(verify_input: Any) -> None:
    """Since 0.5.22 a chain's draft plans cache slots for all its tokens, on a GPU."""
    if getattr(verify_input, "kv_loc_plan", None) is not None:
        verify_input.kv_loc_plan = verify_input.prepared_out_cache_loc = None


def _widen(batch: Any, result: Any, width: int, full: int) -> None:
    result.next_token_ids = _padded(result.next_token_ids, width, full)
    logits = result.logits_output
    if logits.hidden_states is not None:
        logits.hidden_states = _padded(logits.hidden_states, width, full)
    result.speculative_num_draft_tokens = full
    if hasattr(result, "prepared_draft_extend_inputs"):
        result.prepared_draft_extend_inputs = None  # They are of the cut width.


def _padded(rows: Tensor, width: int, full: int) -> Tensor:
    """[B * width, ...] to [B * full, ...], each request's rows in front."""
    requests, rest = len(rows) // width, rows.shape[1:]
    padded = rows.new_zeros((requests, full, *rest))
    padded[:, :width] = rows.view(requests, width, *rest)
    return padded.view(requests * full, *rest)
