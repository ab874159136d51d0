"""Step cost for SGLang's DSpark: a part for requests and one for tokens, added up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evict_profile.errors import DataError
from evict_profile.integrations.exporters.planners import (
    Export,
    check_rises,
    staircases_at,
)
from evict_profile.served.step import ServedStep
from evict_profile.stats import Floats, Ints

MOST_PLACES, MOST_APART = 64, 0.10
"""The most places of each part, because SGLang copies them at each step; the largest
relative error of a written sum."""


@dataclass(frozen=True)
class AdditiveCost:
    """Two broken lines whose sum is a step's cost, constant beyond their ends.

    Attributes:
        requests, tokens: places of each line, int64, increasing.
        requests_us: float64 [requests].
        tokens_us: float64 [tokens], 0 at the first.
    """

    requests: Ints
    requests_us: Floats
    tokens: Ints
    tokens_us: Floats

    @classmethod
    def of(cls, costs: Mapping[int, Floats]) -> "AdditiveCost":
        """The sum with the least squares of relative errors at its places.

        Args:
            costs: steps by tokens in all, [T + 1], of each batch.
        """
        requests = _places(min(costs), max(costs))
        tokens = _places(min(costs), max(map(len, costs.values())) - 1)
        pairs = [(b, t) for b in requests for t in tokens if b <= t < len(costs[b])]
        batch, count = np.transpose(pairs)
        cost_us = np.array([costs[b][t] for b, t in pairs])
        parts = np.equal.outer(batch, requests), np.equal.outer(count, tokens[1:])
        terms = np.hstack(parts) / cost_us[:, None]
        us = np.linalg.lstsq(terms, np.ones(len(pairs)))[0]
        of_requests, of_tokens = np.split(us, [len(requests)])
        return cls(requests, of_requests, tokens, np.append(0.0, of_tokens))

    def errors(self, costs: Mapping[int, Floats]) -> Floats:
        """Relative, at every covered count of tokens of every batch."""
        found = []
        for batch, us in costs.items():
            of_tokens = np.interp(range(batch, len(us)), self.tokens, self.tokens_us)
            of_batch = np.interp(batch, self.requests, self.requests_us)
            found.append((of_tokens + of_batch) / us[batch:])
        return np.abs(np.concatenate(found) - 1.0)

    @property
    def fields(self) -> Mapping[str, Any]:
        """SGLang's `SpsAdditiveCostTable`; "bias_seconds" is what it looks for."""
        bias_us = float(self.requests_us[0])
        return {
            "bias_seconds": bias_us / 1e6,
            "bs_probes": self.requests.tolist(),
            "alpha_seconds": ((self.requests_us - bias_us) / 1e6).tolist(),
            "m_probes": self.tokens.tolist(),
            "theta_seconds": (self.tokens_us / 1e6).tolist(),
        }


def _places(first: int, last: int) -> Ints:
    return np.unique(np.geomspace(first, last, MOST_PLACES).round().astype(np.int64))


def sglang_sps(
    served: ServedStep,
    drafts: int,
    context: int | None = None,
) -> Export:
    """Steps at all batches and tokens for SGLang's planner.

    Raises:
        DataError: costs that no such sum has, or that never rise.
    """
    # DSpark pads the tokens of all requests together, to sizes of its own.
    unpadded, table = served.unpadded, served.table
    stairs = staircases_at(unpadded.table, context)
    first, last, at = stairs[0].batch, stairs[-1].batch, stairs[0].context
    costs = {
        batch: unpadded.steps_us(batch, drafts, at) for batch in range(first, last + 1)
    }
    check_rises(us[batch:] for batch, us in costs.items())
    cost = AdditiveCost.of(costs)
    middle, worst = np.quantile(cost.errors(costs), [0.5, 1.0])
    if worst > MOST_APART:
        raise DataError(
            f"{table.path}: SGLang's planner adds a part for requests to one for "
            f"tokens, and this table's steps are up to {worst:.0%} off such a sum; "
            "choose a draft length with --for sglang"
        )
    plain_ms = served.us(first, 1, 0, at).value / 1e3
    high = max((s.costs.high_us / s.costs.step_cost_us).max() for s in stairs) - 1.0
    notes = (
        f"Every step drafts {drafts} levels ({served.drafting.workload}); a plain step "
        f"at batch {first} takes {plain_ms:.3f} ms.",
        f"SGLang adds a part for requests to one for tokens. At batches {first} to "
        f"{last} the sum is within {worst:.1%} of this table's steps, within "
        f"{middle:.1%} in the median. No padding to captured sizes is in it.",
        f"Unions are the activation curve's ({table.activation.workload}); the 95 % "
        f"interval, up to +{high:.1%} of a forward, is not in the numbers.",
        f"Covered up to {last} requests and {cost.tokens[-1]} tokens. SGLang repeats "
        "the last cost from there on, so that further tokens look free: keep "
        "max-running-requests, and its product with the verify window, within that.",
    )
    return Export(cost.fields, notes)
