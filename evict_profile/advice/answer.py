"""Advice in a few sentences: first what was measured, then what may be better.

An interval that does not contain 1 is an answer, however wide it is. Where a step is
estimated the answer is the accepted length that breaks even, and no speed-up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from evict_profile.advice.advise import Advisor, DraftOption, Gain
from evict_profile.advice.plan import PLAIN, DraftPlan, over
from evict_profile.errors import ConfigError, DataError
from evict_profile.served.growth import ERROR, EXPONENT, around
from evict_profile.stats import WHETHER_DRAFTING, Estimate

PUBLIC_K = (1, 3, 5, 7)
"""Draft lengths of most public runs."""

_KNOWN = {
    "measured": ", as you measured",
    "other K": ", not run",
    "other servers": ", not run",
}


@dataclass(frozen=True)
class Answer:
    """What to draft, and what that gains.

    Attributes:
        given: accepted lengths are not of the runs that steps are of.
        texts: the same server on each of its texts, by name.
    """

    advisor: Advisor
    plan: DraftPlan
    given: bool = False
    texts: Mapping[str, Advisor] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.advisor.steps.estimated:
            return " ".join(self._sentences())
        return self._break_evens if self.advisor.steps.table else self._other_servers

    @property
    def settled(self) -> bool:
        if not self.advisor.steps.estimated:
            return self.plan.verdict != "not settled"
        return all(way.verdict != "not settled" for way in self._ways.values())

    @property
    def to_settle(self) -> Gain:
        """The way whose measurement settles the answer: the lead, or the K that may
        be better where the lead does not surely pay.
        """
        if self.advisor.steps.estimated:
            return self._own
        lead, rival = self.plan.lead, self.plan.rival
        return rival if rival and lead.verdict != "pays" else lead

    def _sentences(self) -> Iterator[str]:
        plan, unsure = self.plan, "Not settled: " * (not self.settled)
        if len(plan.advised) > 1:
            ranges = ", ".join(map(str, plan.advised))
            yield f"{unsure}{ranges}: {times(plan.gain, plan.over)}{self._where}."
            return
        if plan.measured and plan.verdict == "pays":
            yield f"{self._said(plan.measured)}."
            yield f"{self._said(plan.lead)}, and surely faster."
        elif plan.reference or plan.verdict == "pays":
            yield f"{unsure}{self._said(plan.lead)}."
        else:
            yield self._unpaid
        yield from self.slower
        yield from self._by_text
        if plan.rival:
            gain = plan.rival.speed
            yield (
                f"K = {plan.rival.levels} may give {gain.value:.2f} ({_ends(gain)}), "
                "not run."
            )
        if plan.reference:
            yield "Plain decoding was not served."

    def _said(self, gain: Gain) -> str:
        """What a K gives, with where that is known from."""
        gives = times(gain.speed, self.plan.over)
        return f"K = {gain.levels}{self._known(gain)}: {gives}{self._where}"

    def _known(self, gain: Gain) -> str:
        if gain.basis == "measured" and self.given:
            return ", its step as you measured"
        return _KNOWN.get(gain.basis, "")

    @property
    def slower(self) -> Iterator[str]:
        """The batches at which the one advised length loses."""
        drafts, over = self.plan.drafts, self.plan.over
        at = ((b, self.advisor.at(b).by_levels[drafts]) for b in self.plan.traffic)
        speeds = ((batch, way.speed.value) for batch, way in at)
        if slow := [f"{b} ({speed:.2f} times)" for b, speed in speeds if speed < 1.0]:
            yield f"K = {drafts} is slower than {over} at batch {', '.join(slow)}."

    @property
    def _by_text(self) -> Iterator[str]:
        """The lead's speed on each text that ran at all batches of the traffic."""
        traffic, drafts = self.plan.traffic, self.plan.lead.levels
        speeds = dict[str, float]()
        for text, advisor in self.texts.items():
            with suppress(DataError, ConfigError, KeyError):
                gains = {b: advisor.at(b).by_levels[drafts] for b in traffic}
                speeds[text] = over(traffic, gains).speed.value
        if len(speeds) > 1:
            each = ", ".join(f"{speed:.2f} on {text}" for text, speed in speeds.items())
            yield f"By text, K = {drafts} gives {each}."

    @property
    def _unpaid(self) -> str:
        lead = self.plan.lead
        if lead.verdict == "does not pay" and self.plan.rival:
            return (
                f"K = {lead.levels}{self._known(lead)}, does not pay: "
                f"{times(lead.speed)}{self._where}. Not settled {WHETHER_DRAFTING} "
                "with another K."
            )
        if self.settled:
            return (
                f"Do not speculate: {times(lead.speed)}{self._where}, with "
                f"K = {lead.levels}{self._known(lead)}."
            )
        ends = f"{_ends(lead.speed)} times {PLAIN}" if lead.speed.known else UNKNOWN
        return (
            f"Not settled {WHETHER_DRAFTING}{self._where} ({ends}). "
            f"If it does: K = {lead.levels}."
        )

    @property
    def _where(self) -> str:
        """The batches that the gain is over."""
        *most, last = self.plan.traffic
        if most:
            return f" over batches {_listed([*most, last])}"
        carried = self.plan.lead.basis == "other batch"
        return f" at batch {last}" + ", where no draft was served" * carried

    @cached_property
    def _own(self) -> DraftOption:
        return own_way(self.advisor, next(iter(self.plan.traffic)))

    @cached_property
    def _ways(self) -> dict[int, DraftOption]:
        """The one K of the answer, at each batch that covers it."""
        at = {batch: self.advisor.at(batch).by_levels for batch in self.plan.traffic}
        own = self._own.levels
        return {batch: ways[own] for batch, ways in at.items() if own in ways}

    @property
    def _break_evens(self) -> str:
        """At the first and the last batch that were asked, and the verdict of each."""
        ways, drafts = self._ways, self._own.levels
        others = {b: w.levels for b in ways if (w := paying(self.advisor, b, drafts))}
        better = "".join(
            f" K = {k} pays at batch {_listed([b for b in others if others[b] == k])}."
            for k in dict.fromkeys(others.values())
        )
        first, *_, last = *ways, *ways
        ends = " and ".join(
            f"more than {even.value:.2f} tokens ({even.low:.2f} to {even.high:.2f}) "
            f"at batch {batch}"
            for batch in dict.fromkeys((first, last))
            for even in [ways[batch].break_even]
        )
        verdicts = dict.fromkeys(way.verdict for way in ways.values())
        own = {
            verdict: ", ".join(str(b) for b in ways if ways[b].verdict == verdict)
            for verdict in verdicts
        }
        said = "; ".join(
            verdict + f" at batch {batches}" * (len(own) > 1)
            for verdict, batches in own.items()
        )
        return (
            f"Estimated, not measured: K = {self._own.levels} pays where a step "
            f"commits {ends}. Yours commits {self._own.committed:.2f}: {said}."
            f"{better} The error is that of other servers."
        )

    @property
    def _other_servers(self) -> str:
        way, stated = self._own, self.advisor.lengths.stated
        shown = sorted({*PUBLIC_K, *stated})
        known = (f"{(1 + k) ** EXPONENT:.2f} at K = {k}" for k in shown)
        return (
            f"A step that verifies n tokens a request takes about n^{EXPONENT:g} plain "
            "steps at any batch (95 %: divide or multiply by "
            f"{around(1.0, ERROR).high:.2f}; public servers of MoE models). "
            f"Break-even accepted lengths are {', '.join(known)}. Yours of "
            f"{way.committed:.2f} at K = {way.levels} is {times(way.speed)}: "
            f"{way.verdict}."
        )


def stated_ways(advisor: Advisor, batch: int) -> list[DraftOption]:
    """The ways of the stated K at a batch; of a rate alone, the nearest to K = 3."""
    ways = advisor.at(batch).ways[1:]
    stated = [way for way in ways if way.levels in advisor.lengths.stated]
    return stated or [min(ways, key=lambda way: abs(way.levels - 3))]


def own_way(advisor: Advisor, batch: int) -> DraftOption:
    """The fastest of the stated K."""
    return max(stated_ways(advisor, batch), key=lambda way: way.speed.value)


def paying(advisor: Advisor, batch: int, drafts: int) -> DraftOption | None:
    """The fastest way that pays at a batch where K = `drafts` does not."""
    ways = [way for way in advisor.at(batch).ways[1:] if way.verdict == "pays"]
    known = any(way.levels == drafts for way in ways) or not ways
    return None if known else max(ways, key=lambda way: way.speed.value)


def _listed(batches: Sequence[int]) -> str:
    """ "1, 4 and 64"."""
    return re.sub(r", (\d+)$", r" and \1", ", ".join(map(str, batches)))


UNKNOWN = "no interval is known"


def times(speed: Estimate, over: str = PLAIN) -> str:
    """ "1.25 times plain decoding (1.09 to 1.44)"."""
    return f"{speed.value:.2f} times {over} ({_ends(speed)})"


def _ends(speed: Estimate) -> str:
    return f"{speed.low:.2f} to {speed.high:.2f}" if speed.known else UNKNOWN
