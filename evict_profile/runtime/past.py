"""What past steps teach: the worth of time, the trust in scores, the unpriced.

Throughput is tokens over time, summed over steps and only then divided. EVICT's ratio
looks at one step alone, and cuts easy steps too early and hard ones too late. The
renewal-reward optimum prices time at the long-run rate, and is right if difficulty is
drawn anew in every step; but text is hard in stretches, a stretch holds a number of
tokens and not of steps, and then each stretch's own rate is right. So the throughput
of the last few steps and this one together is maximised,

    (past tokens + benefit) / (past time + cost),

which is the ratio without a past, and the long-run rate with an endless one. Half of
it fades in two steps, where benchmarks/memory.py finds the smallest worst loss over
kinds of text.

Benefits are scaled by accepted over claimed draft tokens. Without it a drafter that is
too sure of itself buys too much: its tokens and those of the past would be different
currencies. And time that the clock saw beyond the price, drafting above all, belongs
to this step too.
"""

from dataclasses import dataclass

from evict_profile.runtime.decision import Terms

MEMORY_HALF_LIFE_STEPS = 2.0
TRUST_HALF_LIFE_STEPS = 64.0
TRUST_PRIOR_TOKENS = 4.0
"""Weight of "scores are right". It never fades: if it did, a bad spell that cut all
trees to their roots would leave nothing to learn from, for ever."""


@dataclass
class Past:
    """Fading sums over the steps of requests alike.

    Attributes:
        terms: what the next step is decided with.
    """

    unpriced_us: float = 0.0
    tokens: float = 0.0
    us: float = 0.0
    accepted: float = 0.0
    claimed: float = 0.0
    timed_steps: float = 0.0
    memory_half_life_steps: float = MEMORY_HALF_LIFE_STEPS
    trust_half_life_steps: float = TRUST_HALF_LIFE_STEPS
    trust_prior_tokens: float = TRUST_PRIOR_TOKENS

    def __post_init__(self) -> None:
        self.terms = self._terms()

    def observe(
        self, expected: float, accepted: float, claimed: float, priced_us: float,
        step_us: float | None,
    ) -> None:  # fmt: skip
        """Add a step, and let older ones fade.

        Args:
            expected: tokens that the plan counted on, the roots' own included. What
                came out is noisier, and trust already keeps the two together.
            accepted: draft tokens that were.
            claimed: draft tokens that the scores of what was verified promised.
            priced_us: what the table said of the step.
            step_us: what a clock said of it; None takes the price, and what went
                unpriced so far.
        """
        memory = 0.5 ** (1.0 / self.memory_half_life_steps)
        trust = 0.5 ** (1.0 / self.trust_half_life_steps)
        if step_us is not None:
            self.timed_steps = trust * self.timed_steps + 1.0
            surprise_us = max(step_us - priced_us, 0.0) - self.unpriced_us
            self.unpriced_us += surprise_us / self.timed_steps
        self.tokens = memory * (self.tokens + expected)
        self.us = memory * (self.us + priced_us + self.unpriced_us)
        self.accepted = trust * self.accepted + accepted
        self.claimed = trust * self.claimed + claimed

        self.terms = self._terms()

    def _terms(self) -> Terms:
        prior = self.trust_prior_tokens
        trust = (prior + self.accepted) / (prior + self.claimed)
        return Terms(trust, self.tokens, self.us + self.unpriced_us)
