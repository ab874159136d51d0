"""Advice in one sentence."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.advice.advise import Advisor, DraftPlan
from evict_profile.stats import Estimate


@dataclass(frozen=True)
class Answer:
    """The draft length or the schedule of a plan, and what it gains."""

    advisor: Advisor
    plan: DraftPlan

    def __str__(self) -> str:
        traffic = self.plan.traffic
        span = f" at batch {', '.join(map(str, traffic))}"
        if not self.plan.advised:
            return (
                "Do not speculate: no draft length gains more than 1 % over plain "
                f"decoding{span}."
            )
        if len(traffic) > 1:
            split = "equally" if len({*traffic.values()}) == 1 else "as given"
            span = f", {self._span}, if your time is split {split} over batches"
        gain = self.gain
        interval = f"95 %: {gain.low:.2f} to {gain.high:.2f}"
        return (
            f"{'' if gain.worthwhile else 'Not settled, best guess: '}"
            f"{self._lengths}: about {gain.value:.2f} times plain decoding{span}; "
            f"{interval if gain.known else 'no interval is known'}."
        )

    @property
    def gain(self) -> Estimate:
        """Speed over plain decoding of the whole traffic.

        The interval assumes the same relative error at all batches.
        """
        shares = np.array([*self.plan.traffic.values()])
        speeds = [(s.value, s.low, s.high) for s in self._speeds.values()]
        with np.errstate(divide="ignore"):
            took = shares / shares.sum() @ (1.0 / np.array(speeds))
            return Estimate(*(1.0 / took).tolist())

    @cached_property
    def _speeds(self) -> dict[int, Estimate]:
        """Speed as advised at each batch of the traffic."""
        plain, found = Estimate(1.0, 1.0, 1.0), {}
        for batch in self.plan.traffic:
            ways = {way.levels: way.speed for way in self.advisor.at(batch).ways}
            found[batch] = ways.get(self.plan.drafts_at(batch), plain)
        return found

    @property
    def _span(self) -> str:
        """The slowest and the fastest batch, the smaller one first."""
        speeds = self._speeds
        ends = {pick(speeds, key=lambda b: speeds[b].value) for pick in (min, max)}
        return " to ".join(f"{speeds[b].value:.2f} at batch {b}" for b in sorted(ends))

    @property
    def _lengths(self) -> str:
        one, *more = self.plan.advised
        if not more:
            return f"K = {one.drafts}"
        ranges = (one, *more)
        return ", ".join(
            f"K = {r.drafts} at batch {r.first} to {r.last}" for r in ranges
        )
