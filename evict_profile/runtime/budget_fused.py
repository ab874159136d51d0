"""Routing within a budget in two or three Triton kernels.

As tensor operations it is some fifteen small kernels a layer around a sort and a top k,
and each costs more to launch than to run. Experts are few, so an expert's rank is
counted: how many have more mass, or as much and a lower index. A token's best are found
by k passes over what is kept.

1. `find_last`, for truncation and for the ranking "top-k": where each token's natural
   top k ends.
2. `sum_up`: mass of each expert, and for truncation whether any token runs it.
3. `route`: every program ranks the experts, and routes a few tokens.

No program adds to what another wrote, so results are the same from run to run. Sums
over tokens, and over the weights of one, are taken in another order than that of the
tensor operations: in ids both agree unless two masses differ by no more than rounding,
in weights to rounding.
"""

import torch
import triton
from torch import Tensor

from evict_profile.runtime import budget_kernels as kernels
from evict_profile.runtime.budget import SMALLEST, Mode, Ranking, Routes

ROWS = 4
"""Tokens that a program routes, one a warp."""

SUM_ROWS, SUM_COLUMNS = 32, 32
"""Tokens and experts that a program sums at a time."""

OTHERS = 64
"""Experts with which a program compares all at a time."""


def route(
    probabilities: Tensor,
    top_k: int,
    budget: int,
    *,
    renormalise: bool,
    mode: Mode,
    node_weights: Tensor | None,
    ranking: Ranking,
) -> Routes:
    """As `budget.route_by_tensors`."""
    tokens, experts = probabilities.shape
    sizes, steps = (tokens, experts), probabilities.stride()
    programs = (triton.cdiv(tokens, ROWS),)
    block = triton.next_power_of_2(experts)

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=probabilities.device)

    mass = empty(experts, dtype=torch.float32)
    truncates, by_run = mode == "truncation", ranking == "top-k"
    last_key = last_expert = None
    if truncates or by_run:
        last_key, last_expert = empty(2, tokens, dtype=torch.int32)
        kernels.find_last[programs](
            probabilities, last_key, last_expert, *sizes, top_k, *steps, ROWS, block
        )
    woken = empty(experts, dtype=torch.int32) if truncates else None
    kernels.sum_up[(triton.cdiv(experts, SUM_COLUMNS),)](
        probabilities, node_weights, last_key, last_expert, mass, woken,
        *sizes, *steps, 0 if node_weights is None else node_weights.stride(0),
        by_run, SUM_ROWS, SUM_COLUMNS,
    )  # fmt: skip
    topk_weights = empty(tokens, top_k, dtype=torch.float32)
    topk_ids = empty(tokens, top_k, dtype=torch.int64)
    kernels.route[programs](
        probabilities, mass, last_key, last_expert, woken, topk_weights, topk_ids,
        *sizes, top_k, budget, *steps, SMALLEST,
        renormalise, ROWS, block, OTHERS, triton.next_power_of_2(top_k),
    )  # fmt: skip
    return Routes(topk_weights, topk_ids)
