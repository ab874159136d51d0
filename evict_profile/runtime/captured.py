"""The decision as part of a CUDA graph: fixed buffers in, fixed buffers out.

EVICT's gain is gone when the decision runs outside the draft's graph. So its inputs
and outputs are buffers that outlive the graph: `price` writes costs and terms before a
replay, from the host and without waiting for the device, and `run`, which alone is
captured, reads and writes nothing else.
"""

import torch
from torch import Tensor

from evict_profile.runtime import decision_gpu
from evict_profile.runtime.decision import Rule, Terms
from evict_profile.runtime.decision_gpu import Calibrate

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
        depths: decision_gpu.Depths | None = None,
        parents: decision_gpu.Parents | None = None,
    ) -> None:
        """Buffers for `sizes` costs; made by `Truncator.captured`."""
        self._rule = rule
        self._calibrate = calibrate
        self._depths = depths
        self._parents = parents
        self._costs = torch.ones(sizes, dtype=torch.float64, device=device)
        self._terms = decision_gpu.on_its_device(Terms(), device)
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
        self._terms.copy_(decision_gpu.on_its_device(terms, costs.device))

    def run(self) -> None:
        """Decide. Operations of fixed shape on fixed buffers, fit to be captured."""
        for buffer, value in zip(self.decision, self._decided(), strict=True):
            buffer.copy_(value)

    def _decided(self) -> decision_gpu.Decision:
        given = (self.path_prob, self._costs, self._rule, self._terms, self._calibrate)
        return decision_gpu.decide(*given, self._depths, self._parents)
