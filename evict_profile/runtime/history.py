"""What past steps teach: the worth of time, the trust in scores, when not to draft.

EVICT's ratio looks at one step alone, and cuts easy steps too early and hard ones too
late. The renewal-reward optimum at the long-run rate lags, since text is hard in
stretches. So the throughput of the last few steps and this one together is maximised:
(past tokens + benefit) / (past time + cost). Half of the past fades in two steps, where
docs/research/truncation.md finds the smallest worst loss over kinds of text.
"""

from collections import deque
from statistics import median

from evict_profile.errors import PlanError
from evict_profile.runtime.checks import number
from evict_profile.runtime.decision import Plan, Terms

MEMORY = 0.5 ** (1.0 / 2.0)
"""What a step leaves of tokens and time before it."""
TRUST_MEMORY = 0.5 ** (1.0 / 64.0)
TRUST_PRIOR_TOKENS = 4.0
"""Weight of "scores are right". It never fades: if it did, a bad spell that cut all
trees to their roots would leave nothing to learn from, for ever."""

TIMED_STEPS = 15
"""Overhead is their median: a step that was warmed up, or waited, counts once."""

BACKOFF_MEMORY = 0.5 ** (1.0 / 8.0)
MAX_BACKOFF_STEPS = 32


class DraftBackoff:
    """Whether to draft at all in the coming step.

    What drafted steps lately promised for their time is compared with the cost of a
    plain step. While it is less, steps are skipped; but a step that drafts nothing
    learns nothing, so one is drafted after 1, 2, 4 and at last every 32 skipped steps.
    What was known fades in skipped steps as well, so that one good step decides then.
    """

    def __init__(self) -> None:
        self._tokens_each = self._us = 0.0
        self._skipped = 0
        self.backoff_steps = 1

    def observe(self, tokens_each: float, us: float, drafted: bool) -> None:
        """Add a step; one that drafted nothing only lets the others fade."""
        self._tokens_each *= BACKOFF_MEMORY
        self._us *= BACKOFF_MEMORY
        if drafted:
            self._tokens_each += tokens_each
            self._us += us

    def should_skip(self, plain_us: float) -> bool:
        """Whether the coming step drafts nothing; to be called once a step."""
        if self._tokens_each * plain_us >= self._us:
            self._skipped, self.backoff_steps = 0, 1
            return False
        if self._skipped >= self.backoff_steps:
            self._skipped = 0
            self.backoff_steps = min(2 * self.backoff_steps, MAX_BACKOFF_STEPS)
            return False
        self._skipped += 1
        return True


class History:
    """Fading sums over the steps of one truncator.

    Tokens are remembered for each request, so that batches of any size share them.
    Benefits are scaled by accepted over claimed draft tokens (`trust`): otherwise a
    drafter that is too sure of itself buys too much.
    """

    def __init__(self, learns: bool, overhead_us: float = 0.0) -> None:
        self._learns, self.overhead_us = learns, overhead_us
        self._tokens_each = self._us = self._accepted = self._claimed = 0.0
        self._timed: deque[float] = deque(maxlen=TIMED_STEPS)
        self.trust, self.backoff = 1.0, DraftBackoff()

    def terms(self, batch: int) -> Terms:
        """What the next step of so many requests is decided with."""
        us = self._us + self.overhead_us
        return Terms(self.trust, self._tokens_each * batch, us)

    def observe(self, plan: Plan, committed: float, step_us: float | None) -> None:
        """Add a step; see `Truncator.observe`."""
        batch = len(plan.widths)
        committed = number("committed_tokens", committed)
        if not batch <= committed <= plan.tokens:
            raise PlanError(
                f"committed_tokens {committed:g} is not within {batch}..{plan.tokens}: "
                "each request gains its own token, and no more than were verified"
            )
        if step_us is not None:
            step_us = number("step_us", step_us)
        if not plan.includes:
            return
        drafted = plan.keep.shape[1] > 0
        cost_us = plan.step_cost_us
        self.backoff.observe(plan.expected_tokens / batch, cost_us, drafted)
        if self._learns:
            # A machine that is slower by a factor is slower for every choice. Only
            # where a cost lacks parts of the step do times show what is missing.
            timed_us = None if plan.whole_step else step_us
            self.add(batch, committed - batch, plan.claimed, cost_us, timed_us)

    def add(
        self, batch: int, accepted: float, claimed: float, cost_us: float,
        timed_us: float | None,
    ) -> None:  # fmt: skip
        """Add a step, and let older ones fade.

        The tokens counted on are remembered, not those accepted: these are noisier,
        and trust keeps the two together.
        """
        if timed_us is not None:
            self._timed.append(max(timed_us - cost_us, 0.0))
            self.overhead_us = median(self._timed)
        counted_on = 1.0 + self.trust * claimed / batch
        self._tokens_each = MEMORY * (self._tokens_each + counted_on)
        self._us = MEMORY * (self._us + cost_us + self.overhead_us)
        self._accepted = TRUST_MEMORY * self._accepted + accepted
        self._claimed = TRUST_MEMORY * self._claimed + claimed
        total = TRUST_PRIOR_TOKENS + self._claimed
        self.trust = (TRUST_PRIOR_TOKENS + self._accepted) / total
