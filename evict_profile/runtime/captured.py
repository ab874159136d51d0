"""The decision as part of a CUDA graph: fixed buffers in, fixed buffers out.

EVICT's gain is gone when the decision runs outside the draft's graph. So its inputs
and outputs are buffers that outlive the graph: `price` writes costs and rate before a
replay, from the host and without waiting for the device, and `run`, which alone is
captured, reads and writes nothing else.
"""

import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime import on_device
from evict_profile.runtime.decision import Rule
from evict_profile.runtime.on_device import Calibrate


class CapturedDecision:
    """Buffers of one (batch, nodes), and the operations between them.

    Attributes:
        path_prob: float32 [B, N], to be filled before `run`.
        keep: bool [B, N], closed under ancestors.
        widths: int64 [B], tokens of each request.
        tokens: int64 [], tokens in all.
        refused: bool [], true if `path_prob` held no probabilities and all is kept.
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
    ) -> None:
        """Buffers for `sizes` costs; made by `Truncator.captured`.

        `fused` runs three Triton kernels instead of tensor operations.

        Raises:
            PlanError: `fused`, and a pool is too large or Triton is not installed.
        """
        self._rule = rule
        self._calibrate = calibrate
        self._decide = _fused(rule, batch, nodes) if fused else on_device.decide
        self._costs = torch.ones(sizes, dtype=torch.float64, device=device)
        self._rate = torch.zeros((), dtype=torch.float64, device=device)
        self.path_prob = torch.zeros(batch, nodes, device=device)
        self.keep = torch.zeros(batch, nodes, dtype=torch.bool, device=device)
        self.widths = torch.ones(batch, dtype=torch.int64, device=device)
        self.tokens = torch.zeros((), dtype=torch.int64, device=device)
        self.refused = torch.zeros((), dtype=torch.bool, device=device)

    def price(self, costs: Tensor, rate: float) -> None:
        """Put costs, which lie on the device, and the rate where `run` reads them."""
        self._costs.copy_(costs)
        self._rate.fill_(rate)

    def run(self) -> None:
        """Decide. Tensor operations of fixed shape, fit to be captured."""
        made = self._decide(
            self.path_prob, self._costs, self._rule, self._rate, self._calibrate
        )
        self.keep.copy_(made.keep)
        self.widths.copy_(made.widths)
        self.tokens.copy_(made.tokens)
        self.refused.copy_(made.refused)


def _fused(rule: Rule, batch: int, nodes: int) -> on_device.Decide:
    try:
        from evict_profile.runtime import fused
    except ImportError as error:
        raise PlanError(
            f"the fused decision needs Triton, which is not installed ({error}); "
            "install triton, or leave fused off"
        ) from error
    in_pool = batch * nodes // rule.pools(batch)
    if in_pool > fused.MOST_IN_POOL:
        raise PlanError(
            f"the fused decision takes pools of at most {fused.MOST_IN_POOL} nodes, "
            f"not {in_pool}; leave fused off"
        )
    return fused.decide
