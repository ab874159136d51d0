"""What a run sums up by prompt: the numbers that resampling draws."""

from collections.abc import Mapping

import numpy as np

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.simulate import ReplayRun
from evict_profile.stats import Floats

PER_STEP = (
    "committed", "verified", "depth", "union", "step_us", "verify_us", "draft_us",
    "fixed_us",
)  # fmt: skip
"""Means over the steps of requests, as `PolicyResult` names them."""
COLUMNS = ("us", "requests", *PER_STEP)
"""Summed over the steps of a prompt. `us` is the request's share of a step's time,
`requests` counts its steps; from `depth` on the values are of whole steps."""

Sums = Mapping[str, Floats]
"""By column, over all prompts and in each resample, float64 [1 + resamples]."""


def sums_by_prompt(arrays: TraceArrays, run: ReplayRun, undrafted_us: float) -> Floats:
    """Sums of `COLUMNS` over the steps of each prompt, float64 [prompts, columns].

    A request's share of a step is the time saved without its draft tokens, and an equal
    part of the rest (`undrafted_us`: the forward of roots). Equal shares of the whole
    would charge requests for tokens that others verified, and widen intervals.
    """
    prompt = arrays.prompt[arrays.reply[run.rows]]
    verify_us, draft_us, fixed_us, union = run.cost.T[:, :, None]
    step_us, drafted = run.step_us[:, None], run.verified - 1.0
    tokens = drafted.sum(axis=1, keepdims=True)
    # Where nothing was drafted nothing is shared by tokens.
    added_us = np.where(tokens > 0.0, np.maximum(verify_us - undrafted_us, 0.0), 0.0)
    by_tokens = drafted / np.maximum(tokens, 1.0)
    columns = np.broadcast_arrays(
        (step_us - added_us) / prompt.shape[1] + added_us * by_tokens, 1.0,
        run.counted, run.verified, run.depth[:, None],
        union, step_us, verify_us, draft_us, fixed_us,
    )  # fmt: skip
    prompts = len(arrays.prompts)
    sums = [np.bincount(prompt.ravel(), each.ravel(), prompts) for each in columns]
    return np.stack(sums, axis=1)


def tokens_per_s(sums: Sums) -> Floats:
    return 1e6 * sums["committed"] / sums["us"]


def less_optimism(sums: Sums, optimism: Floats) -> Sums:
    """The sums at throughputs lower by log ratios; step times stay."""
    return {**sums, "us": np.exp(optimism) * sums["us"]}
