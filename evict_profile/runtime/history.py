"""What past steps teach: the worth of time, the trust in scores, when not to draft.

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
from statistics import median

from msgspec import Struct, field

from evict_profile.errors import PlanError
from evict_profile.runtime.checks import number
from evict_profile.runtime.decision import Terms
from evict_profile.runtime.plan import Plan

MEMORY_HALF_LIFE_STEPS = 2.0
TRUST_HALF_LIFE_STEPS = 64.0
TRUST_PRIOR_TOKENS = 4.0
"""Weight of "scores are right". It never fades: if it did, a bad spell that cut all
trees to their roots would leave nothing to learn from, for ever."""

CLOCKED_STEPS = 15
"""Unpriced time is their median: a step that was warmed up, or waited, counts once."""

PAUSE_HALF_LIFE_STEPS = 8.0
MAX_PAUSE_STEPS = 32


class Past(Struct):
    """Fading sums over the steps of requests alike.

    Tokens are remembered for each request, so that a batch that grows or shrinks
    finds them in its own measure.

    Attributes:
        unpriced_us: time of a step that the table does not include.
        trust: draft tokens accepted over those claimed.
    """

    unpriced_us: float = 0.0
    tokens_each: float = 0.0
    us: float = 0.0
    accepted: float = 0.0
    claimed: float = 0.0
    trust: float = 1.0
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
        prior = self.trust_prior_tokens
        self.trust = (prior + self.accepted) / (prior + self.claimed)

    def terms(self, batch: int) -> Terms:
        """What the next step of so many requests is decided with."""
        return Terms(self.trust, self.tokens_each * batch, self.us + self.unpriced_us)


class Pause(Struct):
    """Whether to draft at all in the coming step.

    A truncator cannot undo a draft. Where text is hard or drafting dear, plain decoding
    is faster than the best cut of a drafted tree; but a step that drafts nothing learns
    nothing. So what drafted steps lately promised for their time is compared with the
    price of a plain step. While it is less, steps are skipped, and now and then one is
    drafted to look: after 1, 2, 4 and at last every 32 skipped steps. What was known
    fades in skipped steps as well, so that one look after a long pause decides. Only
    past steps are read, so that this is lossless however drafts are made.

    Attributes:
        tokens_each: tokens that a request was expected to gain, summed.
        us: time of those steps.
        skipped: steps since one was drafted.
        patience: steps to skip before the next look.
    """

    tokens_each: float = 0.0
    us: float = 0.0
    skipped: int = 0
    patience: int = 1

    def observe(self, tokens_each: float, us: float, drafted: bool) -> None:
        """Add a step; one that drafted nothing only lets the others fade."""
        fade = 0.5 ** (1.0 / PAUSE_HALF_LIFE_STEPS)
        self.tokens_each *= fade
        self.us *= fade
        if drafted:
            self.tokens_each += tokens_each
            self.us += us

    def skips(self, plain_us: float) -> bool:
        """Whether the coming step drafts nothing; ask once a step.

        Args:
            plain_us: price of a step of plain decoding.
        """
        if self.tokens_each * plain_us >= self.us:
            self.skipped, self.patience = 0, 1
            return False
        if self.skipped >= self.patience:
            self.skipped = 0
            self.patience = min(2 * self.patience, MAX_PAUSE_STEPS)
            return False
        self.skipped += 1
        return True


class History:
    """The past and the pauses of one truncator.

    Attributes:
        terms: what the next step of so many requests is decided with; see `Past.terms`.
    """

    def __init__(self, learns: bool, unpriced_us: float) -> None:
        """Where it does not learn, each step stands alone.

        `unpriced_us` is time of a step that its price leaves out, until a clock tells.
        """
        self._learns = learns
        self._past = Past(unpriced_us)
        self._pause = Pause()
        self.terms = self._past.terms

    def skips(self, plain_us: float) -> bool:
        """Whether the coming step drafts nothing; see `Pause.skips`."""
        return self._pause.skips(plain_us)

    def observe(self, plan: Plan, committed: float, step_us: float | None) -> None:
        """Add a step; see `Truncator.observe`.

        Raises:
            PlanError: tokens that no such step commits, or a time that is none.
        """
        batch, tokens = plan.widths.shape[0], int(plan.tokens)
        committed = number("committed_tokens", committed)
        if not batch <= committed <= tokens:
            raise PlanError(
                f"committed_tokens {committed:g} is not within {batch}..{tokens}: each "
                "request gains its own token, and no more than were verified"
            )
        if step_us is not None:
            step_us = number("step_us", step_us)
        if plan.refused or not plan.includes:
            return
        us = float(plan.step_cost_us)
        drafted = plan.keep.shape[1] > 0
        self._pause.observe(plan.expected_tokens / batch, us, drafted)
        if not self._learns:
            return
        # A machine that is slower by a factor is slower for every choice. Only where a
        # price lacks parts of the step can a clock tell what is missing.
        clocked_us = None if plan.whole_step else step_us
        self._past.observe(
            batch, committed - batch, float(plan.claimed), us, clocked_us
        )
