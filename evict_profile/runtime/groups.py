"""What past steps taught, kept apart for each group of requests alike.

Code is drafted better than prose, and what a step on one teaches is wrong for the
other. So every group has a past of its own, which prices its time and trusts its
scores, and a pause of its own, in which it does not draft; a group begins with neither.
"""

from dataclasses import dataclass, field

from evict_profile.runtime.decision import Terms
from evict_profile.runtime.past import MEMORY_HALF_LIFE_STEPS, Past
from evict_profile.runtime.pause import Pause
from evict_profile.runtime.plan import Plan


@dataclass
class Groups:
    """Pasts and pauses by the name of their group.

    Attributes:
        learns: whether a past changes decisions; else each step stands alone.
        unpriced_us: time of a step that its price leaves out, until a clock tells.
        memory_half_life_steps: how fast pasts fade.
    """

    learns: bool
    unpriced_us: float
    memory_half_life_steps: float = MEMORY_HALF_LIFE_STEPS
    _pasts: dict[str, Past] = field(default_factory=dict)
    _pauses: dict[str, Pause] = field(default_factory=dict)

    def terms(self, group: str, batch: int) -> Terms:
        """What the next step of so many requests is decided with."""
        if self.learns:
            return self._past(group).terms(batch)
        return Terms(us=self.unpriced_us)

    def skips(self, group: str, plain_us: float) -> bool:
        """Whether the coming step drafts nothing; see `Pause.skips`."""
        return self._pause(group).skips(plain_us)

    def observe(self, plan: Plan, committed: float, step_us: float | None) -> None:
        """Add a step to the past of its group; see `Truncator.observe`."""
        batch, us = len(plan.widths), float(plan.step_cost_us)
        drafted = plan.keep.shape[1] > 0
        self._pause(plan.group).observe(plan.expected_tokens / batch, us, drafted)
        # A machine that is slower by a factor is slower for every choice. Only where a
        # price lacks parts of the step can a clock tell what is missing.
        clocked_us = None if plan.whole_step else step_us
        self._past(plan.group).observe(
            batch, committed - batch, float(plan.claimed), us, clocked_us
        )

    def _past(self, group: str) -> Past:
        if group not in self._pasts:
            self._pasts[group] = Past(
                self.unpriced_us, memory_half_life_steps=self.memory_half_life_steps
            )
        return self._pasts[group]

    def _pause(self, group: str) -> Pause:
        return self._pauses.setdefault(group, Pause())
