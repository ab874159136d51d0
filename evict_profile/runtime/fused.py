"""The decision in three Triton kernels, for pools that a GPU can compare pairwise.

As tensor operations the decision is a dozen small kernels around a sort, and each costs
more to launch than to run. Nodes are few, so a node's place in its pool is simply
counted: how many are better, or equal and before it. That is a stable sort without a
sort, it spreads over the whole GPU, and it makes the kept set a comparison of places
with k. Between the two stands one scan over a pool's sums.

1. `rank`: the place of each node in its pool, by counting; its gain goes there.
2. `choose`: one program sums the pools, scans, scores every k and takes the best.
3. `keep_best`: places under k, and their number for each request.
"""

import torch
import triton
from torch import Tensor

from evict_profile.runtime import kernels
from evict_profile.runtime.decision import LARGEST_PROBABILITY, Rule
from evict_profile.runtime.on_device import Calibrate, Decision

MOST_IN_POOL = 16_384
"""One program's scan holds no more, and beyond it n^2 pairs cost more than a sort."""

SUMS_A_WARP = 256
"""Eight a thread: more would spill out of the registers."""

MINE, OTHERS = 32, 256
"""Nodes that one program places, and nodes that it compares them with at a time."""


def decide(
    path_prob: Tensor,
    costs: Tensor,
    rule: Rule,
    terms: Tensor,
    calibrate: Calibrate | None,
) -> Decision:
    """As `on_device.decide`; pools hold at most MOST_IN_POOL."""
    path_prob = path_prob.contiguous()
    batch, nodes = path_prob.shape
    pools = rule.pools(batch)
    size = batch * nodes // pools
    programs = triton.cdiv(size, MINE)
    gains = path_prob if calibrate is None else calibrate(path_prob, None)

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=path_prob.device)

    places = empty(pools, size, dtype=torch.int32)
    ordered = empty(pools, size, dtype=torch.float64)
    unsound = empty(pools, programs, dtype=torch.int32)
    kernels.rank[(pools, programs)](
        path_prob, gains, places, ordered, unsound, size,
        LARGEST_PROBABILITY, MINE, OTHERS,
    )  # fmt: skip
    k, tokens = (empty(1, dtype=torch.int64)[0] for _ in range(2))
    claimed, cost = (empty(1, dtype=torch.float64)[0] for _ in range(2))
    refused = empty(1, dtype=torch.bool)[0]
    block = triton.next_power_of_2(max(size, 2))
    kernels.choose[(1,)](
        ordered, costs, terms, unsound, k, tokens, claimed, cost, refused,
        batch, pools, size, len(costs), pools * programs,
        rule.objective == "rate", block, OTHERS,
        num_warps=max(4, min(32, block // SUMS_A_WARP)),
    )  # fmt: skip
    keep = empty(batch, nodes, dtype=torch.bool)
    widths = empty(batch, dtype=torch.int64)
    kernels.keep_best[(batch,)](
        places, k, keep, widths, nodes, triton.next_power_of_2(nodes)
    )
    return Decision(widths, keep, tokens, claimed, cost, refused)
