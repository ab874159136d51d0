"""The best draft length at each batch, and its speed-up over plain decoding.

Speed-up is committed(way) step(plain) / step(way). Its interval adds relative errors of
acceptance and of the ratio of steps (`ServedStep.ratio`) in quadrature.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from evict_profile.advice.acceptance import AcceptedLengths
from evict_profile.advice.drafting import drafter_of, drafting_of_level
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.stats import WORTHWHILE, Estimate
from evict_profile.table import CostTable, Outside, ServedStep

CHANGE = 1.05
"""Gain from which a schedule changes the draft length, and from which one is advised:
an assumed cost of schedules. vLLM with one used piecewise graphs, and fell from 59.6 to
50.0 tokens a second (vLLM #49548)."""


@dataclass(frozen=True)
class DraftOption:
    """One way to draft at one batch; a chain's draft length K is its levels.

    `step_us` is its step; `ratio` is of it to plain decoding's, the accepted length
    that breaks even; `speed` is over plain decoding, `served` the same as measured.
    """

    name: str
    levels: int
    width: int
    committed: float
    step_us: float
    ratio: float
    speed: Estimate
    served: float | None = None


@dataclass(frozen=True)
class BatchAdvice:
    batch: int
    ways: tuple[DraftOption, ...]

    @cached_property
    def best(self) -> DraftOption:
        """The fastest way if it gains more than one per cent, else plain decoding."""
        fastest = max(self.ways, key=lambda way: way.speed.value)
        return fastest if fastest.speed.value > WORTHWHILE else self.ways[0]

    @property
    def sure(self) -> bool:
        """Whether the interval excludes a speed-up of 1."""
        if self.best.levels:
            return self.best.speed.worthwhile
        drafts = self.ways[1:]
        return bool(drafts) and all(way.speed.worthless for way in drafts)

    @cached_property
    def speeds(self) -> dict[int, float]:
        return {way.levels: way.speed.value for way in self.ways}


@dataclass(frozen=True)
class Advisor:
    served: ServedStep
    lengths: AcceptedLengths
    context: float

    @classmethod
    def of(
        cls,
        table: CostTable,
        lengths: AcceptedLengths,
        context: float | None = None,
        level_ms: float | None = None,
        outside: Outside = "refuse",
        drafter: str | None = None,
    ) -> "Advisor":
        """Of a table as in its file; `context` is by default its smallest.

        A server's own steps stay as they are, whatever is said to have drafted.
        """
        topk = 2 if lengths.kind == "tree" else 1
        at = min(table.axes.context) if context is None else context
        drafts = drafter_of(drafter, table, level_ms is not None)
        ran = table.overheads and table.overheads.batches
        computed = None if ran else drafts
        served = ServedStep.of(table, topk=topk, context=at, drafter=computed)
        if level_ms is not None:
            given = drafting_of_level(served.table, level_ms, drafts)
            served = replace(served, drafting=given)
        return cls(replace(served, drafter=drafts, outside=outside), lengths, at)

    @property
    def batches(self) -> tuple[int, ...]:
        """The table's batches at which it covers a draft at the context."""
        table, least = self.served.table, int(self.lengths.width[1:].min())
        every = table.axes.batch
        far = min(self.context, table.fit.domain["context"][1])
        reach = (b for b in every if table.contexts(b)[1] >= far)
        if found := tuple(b for b in reach if table.max_tokens(b) >= least * b):
            return found
        raise ConfigError(
            f"{table.path}: covers no draft at any of its batches "
            f"{', '.join(map(str, every))}; sweep wider"
        )

    def at(self, batch: int) -> BatchAdvice:
        covered = (
            way
            for way, width in enumerate(self.lengths.width.tolist())
            if self.served.covers(batch, width, self.context)
        )
        return BatchAdvice(batch, tuple(self._option(batch, way) for way in covered))

    def _option(self, batch: int, way: int) -> DraftOption:
        lengths = self.lengths
        width, levels = int(lengths.width[way]), int(lengths.levels[way])
        place = batch, width, levels, self.context
        step_us, ratio = self.served.us(*place).value, self.served.ratio(*place)
        committed, of_lengths = float(lengths.committed[way]), lengths.half_width[way]
        speed = committed / ratio.value
        down = math.hypot(of_lengths, math.log(ratio.high / ratio.value))
        up = math.hypot(of_lengths, math.log(ratio.value / ratio.low))
        interval = Estimate(speed, speed * math.exp(-down), speed * math.exp(up))
        measured = lengths.served.get(levels)
        name = lengths.name(way)
        return DraftOption(
            name, levels, width, committed, step_us, ratio.value, interval, measured
        )


class Range(NamedTuple):
    first: int
    last: int
    drafts: int

    def has(self, batch: int) -> bool:
        return self.first <= batch <= self.last


@dataclass(frozen=True)
class DraftPlan:
    """One draft length for all batches, and one by batch, over a traffic.

    Traffic is the share of plain decoding's time by batch; gains are speeds over plain
    decoding of all of it. `drafts` is 0 for none.
    """

    traffic: Mapping[int, float]
    drafts: int
    gain: float
    schedule: tuple[Range, ...]
    schedule_gain: float

    @property
    def advised(self) -> tuple[Range, ...]:
        """The schedule if it gains enough over one length; none is plain decoding.

        One length covers all batches up to the traffic's largest.
        """
        if self.schedule_gain > CHANGE * self.gain and len(self.schedule) > 1:
            return self.schedule
        return (Range(1, max(self.traffic), self.drafts),) if self.drafts else ()

    def drafts_at(self, batch: int) -> int:
        """As advised; 0 is plain decoding."""
        return next((each.drafts for each in self.advised if each.has(batch)), 0)

    def speed(self, advice: BatchAdvice) -> float:
        """Over plain decoding, as advised at a batch; 1 where nothing is."""
        return advice.speeds.get(self.drafts_at(advice.batch), 1.0)


def plan(
    advisor: Advisor, traffic: Mapping[int, float], falling: bool = False
) -> DraftPlan:
    """The best single draft length, and the best schedule.

    A gain is the harmonic mean of speeds by traffic. `falling` is as in `schedule`.
    """
    at = {batch: advisor.at(batch).speeds for batch in traffic}
    if lacking := [str(batch) for batch, speeds in at.items() if len(speeds) < 2]:
        raise ConfigError(
            f"no draft is covered at batch {', '.join(lacking)}; ask for smaller "
            "batches, or sweep wider"
        )
    gains = {
        drafts: _gain(traffic, {batch: at[batch][drafts] for batch in traffic})
        for drafts in set.intersection(*map(set, at.values()))
    }
    best = max(sorted(gains), key=gains.__getitem__)
    drafts = best if gains[best] > WORTHWHILE else 0
    ranges = schedule(advisor, falling, max(traffic))
    own = {batch: each.drafts for each in ranges for batch in at if each.has(batch)}
    by_batch = _gain(traffic, {batch: at[batch][k] for batch, k in own.items()})
    return DraftPlan(traffic, drafts, gains[drafts], ranges, by_batch)


def _gain(traffic: Mapping[int, float], speeds: Mapping[int, float]) -> float:
    took = sum(share / speeds[batch] for batch, share in traffic.items())
    return sum(traffic.values()) / took


def schedule(
    advisor: Advisor, falling: bool = False, reach: int = 1
) -> tuple[Range, ...]:
    """The draft length by batch, from 1 to `reach` or to the largest that is covered.

    A length changes only for a gain of 5 %; to plain decoding (0) or back, only if the
    next batch gains as much. In a `falling` schedule every batch drafts, and none more
    than the smallest.
    """
    smallest, largest = advisor.batches[0], max(advisor.batches[-1], reach)
    speeds = {b: advisor.at(b).speeds for b in range(smallest, largest + 1)}
    if falling:
        longest = _fastest({k: v for k, v in speeds[smallest].items() if k})
        for batch, found in speeds.items():
            speeds[batch] = {k: v for k, v in found.items() if 0 < k <= longest}
    chosen = [_fastest(speeds[smallest])]
    for batch in range(smallest + 1, largest + 1):
        same = chosen[-1]
        ahead = _fastest(speeds.get(batch + 1, {same: 1.0}), same)
        found = speeds[batch]
        if (ahead == 0) == (same == 0):
            found = {k: v for k, v in found.items() if (k == 0) == (same == 0)}
        chosen.append(_fastest(found, same))
    every = enumerate([chosen[0]] * (smallest - 1) + chosen, 1)
    runs = (list(run) for _, run in groupby(every, key=lambda pair: pair[1]))
    return tuple(Range(run[0][0], run[-1][0], run[0][1]) for run in runs)


def _fastest(speeds: Mapping[int, float], same: int | None = None) -> int:
    """The fastest length, or the one before if that is at most 5 % slower."""
    best = max(speeds, key=speeds.__getitem__)
    if same is None or same not in speeds:
        return best
    return same if speeds[best] <= CHANGE * speeds[same] else best


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
