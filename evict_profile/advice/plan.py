"""One draft length for all batches of a traffic, and one by batch.

Traffic is the share of plain decoding's time by batch, so a gain is the harmonic mean
of speeds by these shares.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from evict_profile.advice.advise import RAN, Advisor, DraftOption, Gain, fastest, lead
from evict_profile.advice.steps import ONE
from evict_profile.errors import ConfigError, DataError
from evict_profile.stats import WORTHWHILE, Estimate, Verdict

CHANGE = 1.05
"""Gain from which a schedule is advised: its assumed cost. vLLM with one used piecewise
graphs, and fell from 59.6 to 50.0 tokens a second (vLLM #49548)."""


PLAIN = "plain decoding"


class Range(NamedTuple):
    first: int
    last: int
    drafts: int

    def has(self, batch: int) -> bool:
        return self.first <= batch <= self.last

    def __str__(self) -> str:
        what = f"K = {self.drafts}" if self.drafts else PLAIN
        to = f" to {self.last}" * (self.last > self.first)
        return f"{what} at batch {self.first}{to}"


@dataclass(frozen=True)
class DraftPlan:
    """What to draft over a traffic.

    Attributes:
        lead: the one length that is compared with the reference.
        reference: K of the reference step; 0 is plain decoding.
        measured: the best length that ran, where the lead did not.
        rival: a length that did not run and may be faster than the lead, or may pay
            where the lead does not.
        schedule: the best length by batch, and its gain; () where there is none.
    """

    traffic: Mapping[int, float]
    lead: Gain
    reference: int = 0
    measured: Gain | None = None
    rival: Gain | None = None
    schedule: tuple[Range, ...] = ()
    schedule_gain: Estimate = ONE

    @property
    def over(self) -> str:
        """What every speed is over."""
        return f"K = {self.reference}" if self.reference else PLAIN

    @property
    def pays(self) -> bool:
        return self.lead.speed.value > WORTHWHILE

    @property
    def drafts(self) -> int:
        """The one length for all batches; 0 is plain decoding."""
        return self.lead.levels if self.pays else self.reference

    @property
    def gain(self) -> Estimate:
        """Speed over the reference, as advised."""
        if len(self.advised) > 1:
            return self.schedule_gain
        return self.lead.speed if self.pays else ONE

    @property
    def verdict(self) -> Verdict:
        """Of the schedule if it is advised, else of the lead.

        A lead that does not pay settles nothing while another K may.
        """
        if len(self.advised) > 1:
            return self.gain.verdict
        unpaid = self.lead.verdict == "does not pay"
        return "not settled" if unpaid and self.rival else self.lead.verdict

    @property
    def advised(self) -> tuple[Range, ...]:
        """The schedule if it gains enough over one length, or surely pays where that
        does not; none is plain decoding.

        One length covers all batches up to the traffic's largest.
        """
        one = self.lead.speed.value if self.pays else 1.0
        enough = self.schedule_gain.value > CHANGE * one
        surely = "pays" == self.schedule_gain.verdict != self.lead.verdict
        if len(self.schedule) > 1 and (enough or surely):
            return self.schedule
        return (Range(1, max(self.traffic), self.drafts),) if self.drafts else ()

    def drafts_at(self, batch: int) -> int:
        """As advised; 0 is plain decoding."""
        return next((each.drafts for each in self.advised if each.has(batch)), 0)


def plan(
    advisor: Advisor,
    traffic: Mapping[int, float],
    falling: bool = False,
    by_batch: bool = True,
    graphs: Sequence[int] = (),
) -> DraftPlan:
    """The best single draft length, and the best schedule.

    `falling` and `graphs` are as in `schedule`; without `by_batch` none is looked for.
    """
    at = {batch: advisor.at(batch) for batch in traffic}
    gains = {batch: each.by_levels for batch, each in at.items()}
    reference = next(iter(at.values())).ways[0].levels
    every = _compared(traffic, gains, reference)
    first = lead(every)
    ran = [each for each in every if each.basis in RAN]
    measured = lead(ran) if ran and first not in ran else None
    rival = _rival(every, first) if ran else None
    made = DraftPlan(traffic, first, reference, measured, rival)
    if not by_batch:
        return made
    ranges = schedule(advisor, falling, max(traffic), graphs)
    own = {b: each.drafts for each in ranges for b in traffic if each.has(b)}
    known = {b: gains[b].get(k, at[b].ways[0]) for b, k in own.items()}
    gain = over(traffic, known).speed
    return replace(made, schedule=ranges, schedule_gain=gain)


def _rival(every: Sequence[Gain], first: Gain) -> Gain | None:
    """A K that did not run and is faster than the lead; or may pay if that does not.

    Of those within `WORTHWHILE` of the fastest it is the best known.
    """
    carried = [each for each in every if each.basis not in RAN]
    if first.verdict == "does not pay":
        may = [each for each in carried if each.verdict != "does not pay"]
        may = [each for each in may if each.speed.value > first.speed.value]
        return max(may, key=lambda each: each.speed.high, default=None)
    enough = WORTHWHILE * max(first.speed.value, 1.0)
    faster = [each for each in carried if each.speed.value > enough]
    if not faster:
        return None
    near = fastest(faster).speed.value / WORTHWHILE
    close = [each for each in faster if each.speed.value >= near]
    return min(close, key=lambda each: each.speed.high / each.speed.low)


def _compared(
    traffic: Mapping[int, float],
    gains: Mapping[int, Mapping[int, DraftOption]],
    reference: int,
) -> list[Gain]:
    """What each K gives that is known at all batches."""
    if lacking := [str(batch) for batch, own in gains.items() if len(own) < 2]:
        raise ConfigError(
            f"no draft is covered at batch {', '.join(lacking)}; ask for smaller "
            "batches, or sweep wider"
        )
    common = set.intersection(*map(set, gains.values())) - {reference}
    if not common:
        raise ConfigError("no K is known at all of these batches; ask for one of them")
    return [over(traffic, {b: gains[b][k] for b in traffic}) for k in sorted(common)]


def over(traffic: Mapping[int, float], gains: Mapping[int, Gain]) -> Gain:
    """The gain of a traffic, as if all batches had the same relative error."""
    shares = np.array([*traffic.values()])
    speeds = [(s.value, s.low, s.high) for s in (gains[b].speed for b in traffic)]
    with np.errstate(divide="ignore"):
        took = shares / shares.sum() @ (1.0 / np.array(speeds))
        speed = Estimate(*(1.0 / took).tolist())
    bases = [gain.basis for gain in gains.values()]
    carried = (basis for basis in bases if basis not in RAN)
    basis = next(carried, "other batch" if "other batch" in bases else bases[0])
    return Gain(max(gain.levels for gain in gains.values()), speed, basis)


def schedule(
    advisor: Advisor,
    falling: bool = False,
    reach: int = 1,
    graphs: Sequence[int] = (),
) -> tuple[Range, ...]:
    """The draft length by batch, from 1 to `reach` or to the largest that is covered.

    Each batch has the length that is best there, as advice on that batch alone. In a
    `falling` schedule every batch drafts, and none more than the smallest. A batch of
    which nothing is known drafts as the one before. A batch drafts as the smallest of
    `graphs` that holds it: SGLang pads it to that one before it looks.
    """
    smallest, largest = advisor.batches[0], max(advisor.batches[-1], reach)
    chosen, drafts = list[int](), 0
    for batch in range(smallest, largest + 1):
        longest = chosen[0] if chosen else math.inf
        with suppress(DataError):
            at = advisor.at(batch)
            drafting = [way for way in at.ways if 0 < way.levels <= longest]
            if not falling:
                drafts = at.best.levels
            elif drafting:
                drafts = lead(drafting).levels
        chosen.append(drafts)
    best = [chosen[0]] * (smallest - 1) + chosen
    ran = (min((g for g in graphs if g >= b), default=b) for b in range(1, largest + 1))
    every = enumerate((best[min(graph, largest) - 1] for graph in ran), 1)
    runs = (list(run) for _, run in groupby(every, key=lambda pair: pair[1]))
    return tuple(Range(run[0][0], run[-1][0], run[0][1]) for run in runs)


def traffic_of(text: str) -> dict[int, float]:
    """Shares of plain decoding's time by batch, from "1:.5,8:.3,64:.2"."""
    pairs = [each.split(":") for each in text.split(",")]
    try:
        found = {int(batch): float(share) for batch, share in pairs}
    except ValueError:
        found = {}
    total = sum(found.values())
    proper = all(0.0 < share < math.inf for share in found.values())
    if len(found) < len(pairs) or min(found) < 1 or not proper:
        raise ConfigError(
            f"--traffic {text}: give each batch once with its share of the time that "
            "plain decoding spends there, as in 1:.5,8:.3,64:.2"
        )
    return {batch: share / total for batch, share in found.items()}
