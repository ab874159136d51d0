"""All policies on one draw of one workload at one cost shape.

Every policy sees the same trees. Throughput is reckoned with acceptance
*probabilities* of the nodes kept, not with the draw, so that two policies differ by
what they chose and by nothing else; the draw only feeds what is learnt online.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.bench.mixes import Workload
from evict_profile.bench.online import DiscountedRate, past_rate_widths, runtime_widths
from evict_profile.bench.policies import (
    Earned,
    earned,
    optimal_widths,
    oracle_earned,
    ratio_widths,
)
from evict_profile.bench.shapes import CostShape
from evict_profile.runtime.past import Past
from evict_profile.stats import Floats, Ints

AR = "AR"
FULL_TREE = "full tree"
BEST_FIXED = "best fixed width"
RATIO = "ratio"
"""EVICT's: each step alone."""
RATE = "rate"
"""The runtime's rule of that name: the last steps and this one, with trust."""
PAST_RATE = "rate of the past"
"""The negative control: time at the long-run rate, and scores taken as they are."""
RATE_AT_OPTIMUM = "rate at optimum"
ORACLE = "oracle"


@dataclass(frozen=True)
class Score:
    """What a policy reached on a workload, each phase as many tokens long."""

    us_per_token: float
    tokens_per_step: float
    width: float

    @classmethod
    def over(cls, phases: list[Earned]) -> "Score":
        """Phases of equal tokens, so that one of few tokens a step takes more steps."""
        steps = np.array([1.0 / phase.tokens for phase in phases])
        us = np.array([phase.us for phase in phases])
        width = np.array([phase.width for phase in phases])
        return cls(
            us_per_token=float((us * steps).mean()),
            tokens_per_step=float(1.0 / steps.mean()),
            width=float(np.average(width, weights=steps)),
        )


@dataclass(frozen=True)
class Contest:
    """One draw of a workload, and what its steps cost."""

    workload: Workload
    shape: CostShape

    @property
    def cost_us(self) -> Floats:
        """Step cost up to the full tree, float64 [tokens + 1]."""
        return self.shape.step_us[: self.workload.benefit.shape[1]]

    def scores(self) -> dict[str, Score]:
        """Each policy's score, by its name."""
        return {
            AR: Score(self.shape.decode_us, 1.0, 1.0),
            FULL_TREE: self.fixed(len(self.cost_us) - 1),
            BEST_FIXED: self.fixed(self.best_fixed_width()),
            RATIO: self.ratio(),
            PAST_RATE: self.past_rate(),
            RATE: self.rate(Past()),
            RATE_AT_OPTIMUM: self.optimum(),
            ORACLE: self.oracle(),
        }

    def best_fixed_width(self) -> int:
        """The one width that would have been fastest over the whole workload."""
        phases = self.workload.phases
        means = [phase.true_benefit[:, 1:].mean(axis=0) for phase in phases]
        us_per_token = [self.cost_us[1:] / tokens for tokens in means]
        return 1 + int(np.mean(us_per_token, axis=0).argmin())

    def fixed(self, width: int) -> Score:
        """What one width in all steps brings."""
        phases = self.workload.phases
        return self._score([np.full(len(phase.benefit), width) for phase in phases])

    def ratio(self) -> Score:
        """Each step's own ratio."""
        phases = self.workload.phases
        return self._score([ratio_widths(p.benefit, self.cost_us) for p in phases])

    def rate(self, past: Past) -> Score:
        """The runtime's rule, never told of a change of text; `past` is used up."""
        seen = self.workload
        return self._in_time(
            runtime_widths(seen.benefit, seen.committed, self.cost_us, past)
        )

    def past_rate(self) -> Score:
        """The long-run rate, never told of a change of text either."""
        seen, rate = self.workload, DiscountedRate.warm(self.cost_us)
        return self._in_time(
            past_rate_widths(seen.benefit, seen.committed, self.cost_us, rate)
        )

    def optimum(self) -> Score:
        """The bound: true probabilities, and each phase's own best rate."""
        phases = self.workload.phases
        return self._score([optimal_widths(phase, self.cost_us) for phase in phases])

    def oracle(self) -> Score:
        """Knows what will be accepted."""
        phases = self.workload.phases
        return Score.over([oracle_earned(phase, self.cost_us) for phase in phases])

    def _in_time(self, width: Ints) -> Score:
        return self._score(self.workload.by_phase(width))

    def _score(self, widths: list[Ints]) -> Score:
        pairs = zip(self.workload.phases, widths, strict=True)
        return Score.over([earned(p.true_benefit, self.cost_us, w) for p, w in pairs])
