"""Experts one at a time: a product for each expert that a token woke, and no other.

Grouped kernels visit every group. With experts as small as the small world's that
visit is most of their time, so that it would not follow the union: at 16 tokens 4 and
64 experts took the same. A loop over woken experts costs its calls, one expert after
the other, as CPU engines run them. A GPU has a grouped kernel for bf16 alone; in fp32
`grouped_mm` is a loop there as well, over all experts, woken or not.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.torch_moe.model import Experts


class WokenExperts:
    """The experts of one layer."""

    def __init__(self, experts: Experts) -> None:
        self.gate_up = [expert.t() for expert in experts.gate_up]
        self.down = [expert.t() for expert in experts.down]

    def __call__(self, x: Tensor, routes: Tensor, weights: Tensor) -> Tensor:
        """Mix of each token's experts; x [T, D], routes and weights [T, k]."""
        top_k = routes.shape[1]
        by_expert, slots = routes.view(-1).sort(stable=True)
        woken, counts = by_expert.unique_consecutive(return_counts=True)
        ids, sizes = woken.tolist(), counts.tolist()
        rows = x.index_select(0, slots // top_k)
        hidden = product(rows, self.gate_up, ids, sizes)
        gate, up = hidden.chunk(2, dim=-1)
        out = product(F.silu(gate).mul_(up), self.down, ids, sizes)
        mixed = torch.empty_like(out).index_copy_(0, slots, out)
        return (mixed.view(*routes.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


def product(
    rows: Tensor, weights: list[Tensor], ids: list[int], sizes: list[int]
) -> Tensor:
    """Rows [slots, in] times their experts' weights [in, out]; experts end to end."""
    out = rows.new_empty(len(rows), weights[0].shape[1])
    for expert, own, into in zip(ids, rows.split(sizes), out.split(sizes), strict=True):
        torch.mm(own, weights[expert], out=into)
    return out
