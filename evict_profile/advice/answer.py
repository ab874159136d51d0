"""Advice in a few sentences: first what was measured, then what may be better.

An interval that does not contain 1 is an answer, however wide it is. Where a step is
estimated the answer is the accepted length that breaks even, and no speed-up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from evict_profile.advice.advise import Advisor, DraftOption, Gain
from evict_profile.advice.plan import DraftPlan
from evict_profile.advice.steps import OfEstimate, Unserved
from evict_profile.served.growth import ERROR, EXPONENT, around
from evict_profile.stats import Estimate

PUBLIC_K = (1, 3, 5, 7)
"""Draft lengths of most public runs."""

_KNOWN = {"measured": ", as you measured", "other K": ", not run"}


@dataclass(frozen=True)
class Answer:
    """What to draft, and what that gains."""

    advisor: Advisor
    plan: DraftPlan

    def __str__(self) -> str:
        if isinstance(self.advisor.steps, Unserved):
            return " ".join(self._of_other_servers())
        if isinstance(self.advisor.steps, OfEstimate):
            return self._break_evens
        return " ".join(self._sentences())

    @property
    def settled(self) -> bool:
        verdict = self._own.gain.verdict if self._estimated else self.plan.verdict
        return verdict != "not settled"

    @property
    def drafts(self) -> int:
        """The K whose measurement settles the answer."""
        return self._own.levels if self._estimated else self.plan.lead.drafts

    @property
    def _estimated(self) -> bool:
        return isinstance(self.advisor.steps, Unserved | OfEstimate)

    def _sentences(self) -> Iterator[str]:
        plan = self.plan
        if len(plan.advised) > 1:
            ranges = ", ".join(map(str, plan.advised))
            unsure = "Not settled: " * (not self.settled)
            yield f"{unsure}{ranges}: {times(plan.gain)}{self._where}."
            return
        if plan.measured:
            yield f"{self._said(plan.measured)}."
            yield f"{self._said(plan.lead)}, and surely faster."
        else:
            yield self._lead
        if plan.rival:
            gain = spread(plan.rival.speed)
            yield f"K = {plan.rival.drafts} may give {gain}, not run."
        if plan.reference:
            yield "Plain decoding was not served."

    def _said(self, gain: Gain) -> str:
        """What a K gives, with where that is known from."""
        base = self.plan.reference
        if base:
            return (
                f"K = {gain.drafts} is {times(gain.speed, f'K = {base}')}{self._where}"
            )
        known = f"{_KNOWN.get(gain.basis, '')}: {times(gain.speed)}{self._where}"
        return f"K = {gain.drafts}{known}"

    @property
    def _lead(self) -> str:
        lead, verdict = self.plan.lead, self.plan.lead.verdict
        if self.plan.reference or verdict == "pays":
            unsure = "Not settled: " * (verdict == "not settled")
            return f"{unsure}{self._said(lead)}."
        if verdict == "does not pay":
            return (
                f"Do not speculate: {times(lead.speed)}{self._where}, with "
                f"K = {lead.drafts}{_KNOWN.get(lead.basis, '')}."
            )
        speed, ends = lead.speed, "no interval is known"
        if speed.known:
            ends = f"{speed.low:.2f} to {speed.high:.2f} times plain decoding"
        return (
            f"Not known whether drafting pays{self._where} ({ends}). "
            f"If it does: K = {lead.drafts}."
        )

    @property
    def _where(self) -> str:
        """The batch; or the slowest and the fastest one, the smaller one first."""
        traffic, at = self.plan.traffic, self._speeds
        if len(traffic) == 1:
            [batch] = traffic
            unserved = self.plan.lead.basis == "other batch"
            return f" at batch {batch}" + ", which was not served" * unserved
        split = "equally" if len({*traffic.values()}) == 1 else "as given"
        ends = sorted({pick(at, key=at.__getitem__) for pick in (min, max)})
        span = " to ".join(f"{at[b]:.2f} at batch {b}" for b in ends)
        if len(ends) == 1:
            span = f"at each of batch {', '.join(map(str, traffic))}"
        return f", {span}, if your time is split {split} over batches"

    @cached_property
    def _speeds(self) -> dict[int, float]:
        """As advised at each batch of the traffic; of the lead where nothing is."""
        found = {}
        for batch in self.plan.traffic:
            drafts = self.plan.drafts_at(batch) if self.plan.advised else None
            speeds = {w.levels: w.speed.value for w in self.advisor.at(batch).ways}
            known = self.plan.lead.drafts if drafts is None else drafts
            found[batch] = speeds.get(known, 1.0)
        return found

    @cached_property
    def _own(self) -> DraftOption:
        """The way of the longest stated K; of a rate alone, of K = 3."""
        return own_way(self.advisor, next(iter(self.plan.traffic)))

    @property
    def _break_evens(self) -> str:
        """At the first and the last batch that were asked, and the verdict of each."""
        ways = {batch: own_way(self.advisor, batch) for batch in self.plan.traffic}
        first, *_, last = *ways, *ways
        ends = " and ".join(
            f"more than {_tokens(ways[batch].break_even)} at batch {batch}"
            for batch in dict.fromkeys((first, last))
        )
        verdicts: dict[str, list[str]] = {}
        for batch, way in ways.items():
            verdicts.setdefault(way.gain.verdict, []).append(str(batch))
        said = "; ".join(
            verdict + f" at batch {', '.join(batches)}" * (len(verdicts) > 1)
            for verdict, batches in verdicts.items()
        )
        way = ways[first]
        return (
            f"Estimated, not measured: K = {way.levels} pays where a step commits "
            f"{ends}. Yours commits {way.committed:.2f}: {said}."
        )

    def _of_other_servers(self) -> Iterator[str]:
        factor = around(1.0, ERROR).high
        yield (
            f"A step that verifies n tokens a request takes about n^{EXPONENT:g} plain "
            f"steps (95 %: divide or multiply by {factor:.2f}; public servers)."
        )
        known = (f"{(1 + k) ** EXPONENT:.2f} at K = {k}" for k in PUBLIC_K)
        yield f"Break-even accepted lengths are {', '.join(known)}."
        way = self._own
        yield (
            f"Yours of {way.committed:.2f} at K = {way.levels} is {times(way.speed)}: "
            f"{way.gain.verdict}."
        )


def own_way(advisor: Advisor, batch: int) -> DraftOption:
    """The way of the longest stated K at a batch; of a rate alone, the nearest to 3."""
    wanted = advisor.longest_stated or 3
    ways = advisor.at(batch).ways[1:]
    return min(ways, key=lambda way: abs(way.levels - wanted))


def times(speed: Estimate, base: str = "plain decoding") -> str:
    """ "1.25 times plain decoding (1.09 to 1.44)"."""
    if not speed.known:
        return f"{speed.value:.2f} times {base} (no interval is known)"
    return f"{speed.value:.2f} times {base} ({speed.low:.2f} to {speed.high:.2f})"


def spread(speed: Estimate) -> str:
    """ "1.32 (1.11 to 1.56)"."""
    known = f" ({speed.low:.2f} to {speed.high:.2f})" if speed.known else ""
    return f"{speed.value:.2f}{known}"


def _tokens(length: Estimate) -> str:
    return f"{length.value:.1f} tokens ({length.low:.1f} to {length.high:.1f})"
