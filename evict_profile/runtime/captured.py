"""The decision as part of a CUDA graph: fixed buffers in, fixed buffers out.

EVICT's gain is gone when the decision runs outside the draft's graph. So its inputs
and outputs are buffers that outlive the graph: `price` writes costs and terms before a
replay, from the host and without waiting for the device, and `run`, which alone is
captured, reads and writes nothing else.
"""

import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime import on_device
from evict_profile.runtime.decision import Rule, Terms
from evict_profile.runtime.on_device import Calibrate

UNREACHABLE_US = 1e30
"""Fills the costs of sizes that are not priced at a context: never chosen."""


class CapturedDecision:
    """Buffers of one (batch, nodes), and the operations between them.

    Attributes:
        path_prob: float32 [B, N], to be filled before `run`.
        depth: int64 [B, N], likewise; None where the decision does not read it.
        parent: int64 [B, N], likewise.
        decision: what `run` writes.
    """

    def __init__(
        self,
        batch: int,
        nodes: int,
        sizes: int,
        rule: Rule,
        device: torch.device,
        calibrate: Calibrate | None = None,
        fused: bool = False,
        depths: on_device.Depths | None = None,
        parents: on_device.Parents | None = None,
    ) -> None:
        """Buffers for `sizes` costs; made by `Truncator.captured`.

        `fused` runs three Triton kernels instead of tensor operations.

        Raises:
            PlanError: `fused`, and a pool is too large, Triton is not installed, or
                depths or parents are to be read.
        """
        if fused and (depths or parents):
            raise PlanError(
                "the fused decision reads no depths and no parents; leave fused off, "
                "or those out"
            )
        self._rule = rule
        self._calibrate = calibrate
        self._fused = _fused(rule, batch, nodes) if fused else None
        self._depths = depths
        self._parents = parents
        self._costs = torch.ones(sizes, dtype=torch.float64, device=device)
        self._terms = on_device.on_its_device(Terms(), device)
        self.path_prob = torch.zeros(batch, nodes, device=device)
        self.depth = depths.depth if depths else None
        self.parent = parents.parent if parents else None
        self.decision = self._decided()

    def price(self, costs: Tensor, terms: Terms) -> None:
        """Put costs, which lie on the device, and terms where `run` reads them.

        On the current stream: the one that replays.
        """
        priced = min(len(costs), len(self._costs))
        self._costs[:priced].copy_(costs[:priced])
        self._costs[priced:].fill_(UNREACHABLE_US)
        self._terms.copy_(on_device.on_its_device(terms, costs.device))

    def run(self) -> None:
        """Decide. Operations of fixed shape on fixed buffers, fit to be captured."""
        for buffer, value in zip(self.decision, self._decided(), strict=True):
            buffer.copy_(value)

    def _decided(self) -> on_device.Decision:
        given = (self.path_prob, self._costs, self._rule, self._terms, self._calibrate)
        if self._fused:
            return self._fused(*given)
        return on_device.decide(*given, self._depths, self._parents)


def _fused(rule: Rule, batch: int, nodes: int) -> on_device.Decide:
    try:
        from evict_profile.runtime import fused
    except ImportError as error:
        raise PlanError(
            f"the fused decision needs Triton, which is not installed ({error}); "
            "install triton, or leave fused off"
        ) from error
    in_pool = batch * nodes // rule.pools(batch)
    if not 0 < in_pool <= fused.MOST_IN_POOL:
        raise PlanError(
            f"the fused decision takes pools of 1 to {fused.MOST_IN_POOL} nodes, not "
            f"{in_pool}; leave fused off"
        )
    return fused.decide
