"""The decision in tensor operations: fixed shapes, no host sync, fit to be captured.

Every size is known before the values are, and no value is read by the host, so a CUDA
graph can hold the whole of it. What cannot be refused by an exception, a NaN or a
value outside [0, 1], raises a flag on the device instead, and everything is verified:
the step is then the one that would have been taken without us.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from evict_profile.runtime.decision import LARGEST_PROBABILITY, Rule, Terms

Calibrate = Callable[[Tensor, Tensor | None], Tensor]


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


class Depths(NamedTuple):
    """Depths of nodes, and what a decision reads them for.

    Attributes:
        depth: int [B, N], from 1; 0 for padding.
        calibrate: whether acceptance differs by depth.
        beside_us: float64 [levels + 1], time beside verification of a step by its
            deepest level, of which deeper ones take the last; None where unknown.
    """

    depth: Tensor
    calibrate: bool
    beside_us: Tensor | None

    def step_us(self) -> Tensor | float:
        """Time of this step beside verification, float64 []."""
        if self.beside_us is None:
            return 0.0
        deepest = self.depth.max().long().clamp(0, len(self.beside_us) - 1)
        return self.beside_us.take(deepest)


class Parents(NamedTuple):
    """Parents of nodes, and what follows them.

    Attributes:
        parent: int [B, N], the index of each node's parent in its row; -1 the root.
        worth_of: path probabilities and parents to acceptance.
    """

    parent: Tensor
    worth_of: Callable[[Tensor, Tensor], Tensor]


def decide(
    path_prob: Tensor,
    costs: Tensor,
    rule: Rule,
    terms: Tensor,
    calibrate: Calibrate | None,
    depths: Depths | None = None,
    parents: Parents | None = None,
) -> Decision:
    """The optimum over ancestor-closed sets, as `decision_cpu.decide` finds it.

    Args:
        path_prob: floats [B, N]; parents before children wherever the two tie.
        costs: float64 [most + 1], step cost at each k, on the same device.
        rule: what is maximised.
        terms: float64 [4], the fields of `Terms`.
        calibrate: path probability to acceptance, non-decreasing; None for itself.
        depths: those of the nodes, and what they are read for.
        parents: those of the nodes, where conditional acceptance takes the
            place of `calibrate`.
    """
    batch, nodes = path_prob.shape
    pools = rule.pools(batch)
    sound = (path_prob >= 0.0) & (path_prob <= LARGEST_PROBABILITY)
    refused = ~sound.all()
    clean = torch.where(sound, path_prob, 0.0)
    pooled = clean.reshape(pools, -1)
    if parents is None:
        gains, order = _ordered(pooled, calibrate, depths)
    else:
        worth = parents.worth_of(clean, parents.parent).reshape(pooled.shape)
        order = torch.argsort(pooled, dim=1, descending=True, stable=True)
        gains, order = _by_worth(worth.gather(1, order), order)
    gains = gains[:, : len(costs) - 1]
    trust, tokens, us, rate = terms.unbind()
    beside_us = depths.step_us() if depths else 0.0
    us = us + beside_us
    # All is divided by the trust, as on the CPU.
    start = (batch + tokens) / trust
    claimed = _running_sum(gains, start)
    by_rate = rule.objective == "rate"
    score = claimed - rate / trust * costs if by_rate else claimed / (costs + us)
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
    return torch.tensor(terms, dtype=torch.float64).to(device, non_blocking=True)


def _ordered(
    clean: Tensor, calibrate: Calibrate | None, depths: Depths | None
) -> tuple[Tensor, Tensor]:
    """What nodes are worth in descending order, and their places, [pools, nodes].

    Of equal worth the more probable stands first, then the first by index, as
    `on_cpu` says.
    """
    best, order = torch.sort(clean, dim=1, descending=True, stable=True)
    if calibrate is None:
        return best, order
    if depths is None or not depths.calibrate:
        return calibrate(best, None), order
    depth = depths.depth.reshape(clean.shape).gather(1, order)
    return _by_worth(calibrate(best, depth), order)


def _by_worth(worth: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """What nodes in this order are worth, descending, and their places."""
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
        batch: int,
        nodes: int,
        sizes: int,
        rule: Rule,
        device: torch.device,
        calibrate: Calibrate | None = None,
        depths: Depths | None = None,
        parents: Parents | None = None,
    ) -> None:
        """Buffers for `sizes` costs; made by `Truncator.captured`."""
        self._rule = rule
        self._calibrate = calibrate
        self._depths = depths
        self._parents = parents
        self._costs = torch.ones(sizes, dtype=torch.float64, device=device)
        self._terms = on_its_device(Terms(), device)
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
        self._terms.copy_(on_its_device(terms, costs.device))

    def run(self) -> None:
        """Decide. Operations of fixed shape on fixed buffers, fit to be captured."""
        for buffer, value in zip(self.decision, self._decided(), strict=True):
            buffer.copy_(value)

    def _decided(self) -> Decision:
        given = (self.path_prob, self._costs, self._rule, self._terms, self._calibrate)
        return decide(*given, self._depths, self._parents)
