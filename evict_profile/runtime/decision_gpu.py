"""The decision in tensor operations: fixed shapes, no host sync, fit to be captured.

Every size is known before the values are, and no value is read by the host, so a CUDA
graph can hold the whole of it. What cannot be refused by an exception, a NaN or a
value outside [0, 1], raises a flag on the device instead, and everything is verified:
the step is then the one that would have been taken without us.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from msgspec.structs import astuple
from torch import Tensor

from evict_profile.runtime.decision import LARGEST_PROBABILITY, Rule, Terms

WorthOf = Callable[[Tensor], Tensor]
"""From path probabilities to acceptance, both [B, N]."""

UNREACHABLE_US = 1e30
"""Fills the costs of sizes that are not priced at a context: never chosen."""


class Decision(NamedTuple):
    """What a device decided; every field is a tensor on it.

    Attributes:
        widths: int64 [B], tokens of each request, its root included.
        keep: bool [B, N], nodes that are verified.
        tokens: int64 [], tokens in all.
        claimed: float64 [], draft tokens that the scores of what is kept claim.
        step_cost_us: float64 [], predicted cost of the step.
        refused: bool [], true if `path_prob` held no probabilities, so that all that
            is priced is kept.
    """

    widths: Tensor
    keep: Tensor
    tokens: Tensor
    claimed: Tensor
    step_cost_us: Tensor
    refused: Tensor


class BesideByLevel(NamedTuple):
    """Time of a step beside verification, read at its deepest level.

    Attributes:
        depth: int [B, N], of each node from 1; 0 for padding.
        us: float64 [N + 1], by deepest level.
    """

    depth: Tensor
    us: Tensor

    def read(self) -> Tensor:
        """That of this step, float64 []."""
        return self.us.take(self.depth.max().long().clamp(0, len(self.us) - 1))


def decide(
    path_prob: Tensor,
    costs: Tensor,
    rule: Rule,
    terms: Tensor,
    worth_of: WorthOf | None = None,
    beside: BesideByLevel | None = None,
) -> Decision:
    """The optimum over ancestor-closed sets, as `decision_cpu.decide` finds it.

    Args:
        path_prob: floats [B, N]; parents before children wherever the two tie.
        costs: float64 [most + 1], step cost at each k, on the same device.
        rule: what is maximised.
        terms: float64 [4], the fields of `Terms`.
        worth_of: acceptance of nodes; None believes the drafter.
        beside: time beside verification; None counts none.
    """
    batch, nodes = path_prob.shape
    sound = (path_prob >= 0.0) & (path_prob <= LARGEST_PROBABILITY)
    refused = ~sound.all()
    clean = torch.where(sound, path_prob, 0.0)
    gains, order = _ordered(clean, rule.pools(batch), worth_of)
    trust, tokens, us, rate = terms.unbind()
    beside_us = beside.read() if beside else 0.0
    # All is divided by the trust, as on the CPU.
    start = (batch + tokens) / trust
    claimed = _running_sum(gains[:, : len(costs) - 1], start)
    if rule.objective == "rate":
        score = claimed - rate / trust * costs
    else:
        score = claimed / (costs + (us + beside_us))
    k = torch.where(refused, len(costs) - 1, torch.argmax(score))
    places = torch.arange(order.shape[1], device=order.device)
    keep = torch.empty_like(order, dtype=torch.bool)
    keep.scatter_(1, order, (places < k).expand_as(order))
    keep = keep.reshape(batch, nodes)
    widths = keep.sum(dim=1) + 1
    # take, because a subscript would read k on the host.
    sums = (claimed.take(k) - start, costs.take(k) + beside_us)
    return Decision(widths, keep, widths.sum(), *sums, refused)


def on_its_device(terms: Terms, device: torch.device) -> Tensor:
    """Terms as `decide` reads them; copied without waiting for the device."""
    numbers = torch.tensor(astuple(terms), dtype=torch.float64)
    return numbers.to(device, non_blocking=True)


def _ordered(
    clean: Tensor, pools: int, worth_of: WorthOf | None
) -> tuple[Tensor, Tensor]:
    """What nodes are worth in descending order, and their places, [pools, nodes].

    Of equal worth the more probable stands first, then the first by index.
    """
    pooled = clean.reshape(pools, -1)
    best, order = torch.sort(pooled, dim=1, descending=True, stable=True)
    if worth_of is None:
        return best, order
    worth = worth_of(clean).reshape(pooled.shape).gather(1, order)
    worth, again = torch.sort(worth, dim=1, descending=True, stable=True)
    return worth, order.gather(1, again)


def _running_sum(gains: Tensor, start: Tensor) -> Tensor:
    steps = gains.sum(dim=0, dtype=torch.float64).cumsum(0)
    return start + torch.nn.functional.pad(steps, (1, 0))


class CapturedDecision:
    """The decision as part of a CUDA graph: fixed buffers in, fixed buffers out.

    EVICT's gain is gone when the decision runs outside the draft's graph. So its inputs
    and outputs are buffers that outlive the graph: `price` writes costs and terms
    before a replay, from the host and without waiting for the device, and `run`, which
    alone is captured, reads and writes nothing else. One is of one (batch, nodes).

    Attributes:
        path_prob: float32 [B, N], to be filled before `run`.
        depth: int64 [B, N], likewise; None where the decision does not read it.
        parent: int64 [B, N], likewise.
        decision: what `run` writes.
    """

    def __init__(
        self,
        path_prob: Tensor,
        sizes: int,
        rule: Rule,
        worth_of: WorthOf | None = None,
        beside: BesideByLevel | None = None,
        depth: Tensor | None = None,
        parent: Tensor | None = None,
    ) -> None:
        """Buffers for `sizes` costs; made by `Truncator.captured`."""
        self.path_prob, self.depth, self.parent = path_prob, depth, parent
        self._rule, self._worth_of, self._beside = rule, worth_of, beside
        device = path_prob.device
        self._costs = torch.ones(sizes, dtype=torch.float64, device=device)
        self._terms = on_its_device(Terms(), device)
        self.decision = self._decided()

    def price(self, costs: Tensor, terms: Terms) -> None:
        """Put costs, which lie on the device, and terms where `run` reads them.

        On the current stream: the one that replays.
        """
        priced = min(len(costs), len(self._costs))
        self._costs[:priced].copy_(costs[:priced])
        self._costs[priced:].fill_(UNREACHABLE_US)
        self._terms.copy_(on_its_device(terms, costs.device))

    def run(self) -> None:
        """Decide. Operations of fixed shape on fixed buffers, fit to be captured."""
        for buffer, value in zip(self.decision, self._decided(), strict=True):
            buffer.copy_(value)

    def _decided(self) -> Decision:
        given = (self.path_prob, self._costs, self._rule, self._terms)
        return decide(*given, self._worth_of, self._beside)
