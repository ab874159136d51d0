"""Rules that learn from past steps, in the order of time, as a server runs them.

The runtime's own, with the past that the runtime keeps; and a negative control, the
long-run rate of the past, which is what renewal reward advises if difficulty is drawn
anew in every step.

`benefit` is what the drafter expects of t tokens, `committed` what they brought in
this draw, both [steps, tokens + 1]; a step's own outcome is learnt after its choice.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.runtime.past import Past
from evict_profile.stats import Floats, Ints

HALF_LIFE_STEPS = 32.0
WARM_STEPS = 1.0


def runtime_widths(
    benefit: Floats, committed: Floats, cost_us: Floats, past: Past
) -> Ints:
    """Throughput of the remembered steps and this one. Ties keep the smaller.

    What `on_cpu.decide` chooses for one request a step, and what `Truncator.observe`
    then tells the past, without a clock.
    """
    width = np.empty(len(benefit), dtype=np.int64)
    for step, expected in enumerate(benefit):
        trust, tokens, us, _ = past.terms(1)
        together = tokens + 1.0 + trust * (expected - 1.0)
        width[step] = t = 1 + int((together[1:] / (us + cost_us[1:])).argmax())
        gained, claimed = float(committed[step, t]), float(expected[t]) - 1.0
        past.observe(1, gained - 1.0, claimed, float(cost_us[t]), None)
    return width


@dataclass
class DiscountedRate:
    """Discounted tokens over discounted time: a ratio of sums, as in renewal reward.

    A mean of each step's tokens / time would weigh short steps too much.
    """

    tokens: float
    us: float
    keep: float = 0.5 ** (1.0 / HALF_LIFE_STEPS)

    @classmethod
    def warm(cls, cost_us: Floats) -> "DiscountedRate":
        """Started as if it had seen a step that verified the root alone."""
        return cls(WARM_STEPS, WARM_STEPS * float(cost_us[1]))

    @property
    def per_us(self) -> float:
        """Tokens a microsecond."""
        return self.tokens / self.us

    def observe(self, tokens: float, us: float) -> None:
        """Fade what was known, and add one step."""
        self.tokens = self.keep * self.tokens + tokens
        self.us = self.keep * self.us + us


def past_rate_widths(
    benefit: Floats, committed: Floats, cost_us: Floats, rate: DiscountedRate
) -> Ints:
    """The largest benefit - rate * cost at the rate so far. Ties keep the smaller."""
    width = np.empty(len(benefit), dtype=np.int64)
    for step, expected in enumerate(benefit):
        width[step] = t = 1 + int((expected - rate.per_us * cost_us)[1:].argmax())
        rate.observe(float(committed[step, t]), float(cost_us[t]))
    return width
