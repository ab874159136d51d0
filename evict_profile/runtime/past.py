"""What past steps teach: the worth of time, the trust in scores, the unpriced.

Throughput is tokens over time, summed over steps and only then divided. EVICT's ratio
looks at one step alone, and cuts easy steps too early and hard ones too late. The
renewal-reward optimum prices time at the long-run rate, and is right if difficulty is
drawn anew in every step; but text is hard in stretches, a stretch holds a number of
tokens and not of steps, and then each stretch's own rate is right. So the throughput
of the last few steps and this one together is maximised,

    (past tokens + benefit) / (past time + cost),

which is the ratio without a past, and the long-run rate with an endless one. Half of
it fades in two steps, where docs/research/truncation.md finds the smallest worst loss
over kinds of text with honest scores.

Benefits are scaled by accepted over claimed draft tokens. Without it a drafter that is
too sure of itself buys too much: its tokens and those of the past would be different
currencies. And time that the clock saw beyond the price, drafting above all, belongs
to this step too.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from evict_profile.runtime.decision import Terms

MEMORY_HALF_LIFE_STEPS = 2.0
TRUST_HALF_LIFE_STEPS = 64.0
TRUST_PRIOR_TOKENS = 4.0
"""Weight of "scores are right". It never fades: if it did, a bad spell that cut all
trees to their roots would leave nothing to learn from, for ever."""

CLOCKED_STEPS = 15
"""Unpriced time is their median: a step that was warmed up, or waited, counts once."""


@dataclass
class Past:
    """Fading sums over the steps of requests alike.

    Tokens are remembered for each request, so that a batch that grows or shrinks
    finds them in its own measure.

    Attributes:
        unpriced_us: time of a step that the table does not include.
    """

    unpriced_us: float = 0.0
    tokens_each: float = 0.0
    us: float = 0.0
    accepted: float = 0.0
    claimed: float = 0.0
    memory_half_life_steps: float = MEMORY_HALF_LIFE_STEPS
    trust_half_life_steps: float = TRUST_HALF_LIFE_STEPS
    trust_prior_tokens: float = TRUST_PRIOR_TOKENS
    clocked: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCKED_STEPS))

    def observe(
        self, batch: int, accepted: float, claimed: float, priced_us: float,
        step_us: float | None,
    ) -> None:  # fmt: skip
        """Add a step, and let older ones fade.

        What the plan counted on is remembered, not what came out: that is noisier,
        and trust already keeps the two together.

        Args:
            batch: requests verified.
            accepted: draft tokens that were.
            claimed: draft tokens that the scores of what was verified promised.
            priced_us: what the table said of the step.
            step_us: what a clock said of it; None takes the price, and what has gone
                unpriced so far.
        """
        if step_us is not None:
            self.clocked.append(max(step_us - priced_us, 0.0))
            self.unpriced_us = median(self.clocked)
        memory = 0.5 ** (1.0 / self.memory_half_life_steps)
        counted_on = 1.0 + self.trust * claimed / batch
        self.tokens_each = memory * (self.tokens_each + counted_on)
        self.us = memory * (self.us + priced_us + self.unpriced_us)
        fade = 0.5 ** (1.0 / self.trust_half_life_steps)
        self.accepted = fade * self.accepted + accepted
        self.claimed = fade * self.claimed + claimed

    @property
    def trust(self) -> float:
        """Draft tokens accepted over those claimed."""
        prior = self.trust_prior_tokens
        return (prior + self.accepted) / (prior + self.claimed)

    def terms(self, batch: int) -> Terms:
        """What the next step of so many requests is decided with."""
        return Terms(self.trust, self.tokens_each * batch, self.us + self.unpriced_us)
