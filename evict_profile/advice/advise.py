"""How much faster each way to draft is at each batch.

A step of a way commits `committed` tokens and takes `ratio` reference steps, so it is
committed / ratio times as fast as plain decoding: the ratio is the accepted length that
breaks even. Where a server ran no plain decoding, both are over its smallest K. The
interval adds the relative errors of acceptance and of the ratio in quadrature.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from evict_profile.advice.drafting import drafter_of
from evict_profile.advice.lengths import AcceptedLengths
from evict_profile.advice.steps import ONE, Steps, Table, steps_of
from evict_profile.errors import ConfigError, DataError
from evict_profile.served.growth import Basis
from evict_profile.stats import WORTHWHILE, Estimate
from evict_profile.table import Outside

RAN = ("measured", "table", "other batch")
"""What a ratio rests on where this K ran; else it is carried from another one."""

MOST_STATED = 2
"""Largest K that is compared, over the largest whose acceptance is stated."""


class Gain(NamedTuple):
    """What drafting K gains over the reference, at a batch or over a traffic."""

    drafts: int
    speed: Estimate
    basis: Basis

    @property
    def verdict(self) -> str:
        low, value, high = self.speed.low, self.speed.value, self.speed.high
        if low > 1.0 and value > WORTHWHILE:
            return "pays"
        if high < WORTHWHILE or (low > 1.0 and value <= WORTHWHILE):
            return "does not pay"
        return "not settled"


def lead(gains: Sequence[Gain]) -> Gain:
    """The fastest K that ran, unless one that did not is surely faster."""
    ran = [each for each in gains if each.basis in RAN] or gains
    first = max(ran, key=lambda each: each.speed.value)
    surely = [each for each in gains if each.speed.low > first.speed.value]
    return max(surely, key=lambda each: each.speed.value, default=first)


@dataclass(frozen=True)
class DraftOption:
    """One way to draft at one batch; a chain's draft length K is its levels.

    Attributes:
        ratio: its step over the reference's, and what that rests on.
        break_even: committed tokens at which it is as fast as the reference.
        speed: over the reference.
    """

    name: str
    levels: int
    width: int
    committed: float
    ratio: Estimate
    basis: Basis
    break_even: Estimate
    speed: Estimate
    step_us: float | None = None

    @property
    def gain(self) -> Gain:
        return Gain(self.levels, self.speed, self.basis)


@dataclass(frozen=True)
class BatchAdvice:
    """All ways at a batch; the first is the reference."""

    batch: int
    ways: tuple[DraftOption, ...]

    @cached_property
    def gains(self) -> dict[int, Gain]:
        """By K; of trees cut to several widths, the widest."""
        return {way.levels: way.gain for way in self.ways}

    @cached_property
    def lead(self) -> DraftOption:
        """The way to draft that is compared with the reference first."""
        found = lead([way.gain for way in self.ways[1:]])
        return next(way for way in self.ways[1:] if way.gain == found)

    @property
    def best(self) -> DraftOption:
        """The lead if it gains more than one per cent, else the reference."""
        gains = self.ways[1:] and self.lead.speed.value > WORTHWHILE
        return self.lead if gains else self.ways[0]

    @cached_property
    def speeds(self) -> dict[int, float]:
        """Of the reference and of every K that a schedule may choose."""
        ran = [way for way in self.ways if way.basis in RAN]
        chosen = {way.levels: way for way in (ran if ran[1:] else self.ways)}
        if self.ways[1:]:
            chosen[self.lead.levels] = self.lead
        return {k: way.speed.value for k, way in sorted(chosen.items())}


@dataclass(frozen=True)
class Advisor:
    """Steps and accepted lengths, and the kind that drafts."""

    steps: Steps
    lengths: AcceptedLengths
    drafter: str = "eagle3"

    @classmethod
    def of(
        cls,
        table: Table | None,
        lengths: AcceptedLengths,
        context: float | None = None,
        level_ms: float | None = None,
        outside: Outside = "refuse",
        drafter: str | None = None,
        asked: tuple[int, ...] = (),
    ) -> "Advisor":
        """Arguments are those of `steps_of`."""
        kind = drafter_of(drafter, table)
        steps = steps_of(table, kind, context, level_ms, outside, asked)
        return cls(steps, lengths, kind)

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches at which a draft can be compared."""
        every = self.steps.batches()
        if found := tuple(b for b in every if len(self.at(b).ways) > 1):
            return found
        table = self.steps.table
        raise ConfigError(
            f"{table and table.path}: covers no draft at any of its batches "
            f"{', '.join(map(str, every))}; sweep wider, or serve a K"
        )

    def at(self, batch: int) -> BatchAdvice:
        """Every way that is known at a batch; a `DataError` where none can be."""
        reference = self.steps.reference_drafts(batch)
        levels = self.lengths.levels.tolist()
        if reference not in levels:
            raise ConfigError(
                f"plain decoding was not served at batch {batch}, and --accept states "
                f"no length of K = {reference}, which stands for it; give one"
            )
        base = levels.index(reference)
        limit = MOST_STATED * (self.lengths.longest_stated or math.inf)
        found = [self._option(batch, base, base)]
        for way, drafts in enumerate(levels):
            if way != base and drafts <= limit:
                with suppress(DataError):
                    found.append(self._option(batch, way, base))
        return BatchAdvice(batch, tuple(found))

    def _option(self, batch: int, way: int, base: int) -> DraftOption:
        lengths = self.lengths
        width, levels = int(lengths.width[way]), int(lengths.levels[way])
        found = self.steps.ratio(batch, width, levels)
        committed, against = (float(lengths.committed[each]) for each in (way, base))
        plain_us = self.steps.reference_us(batch)
        errors = [lengths.half_width[each] for each in {way, base} - {0}]
        return DraftOption(
            name=lengths.name(way),
            levels=levels,
            width=width,
            committed=committed,
            ratio=found.value,
            basis=found.basis,
            break_even=_times(found.value, against),
            speed=ONE
            if way == base
            else _speed(committed / against, found.value, errors),
            step_us=plain_us and plain_us * found.value.value,
        )


def _times(estimate: Estimate, factor: float) -> Estimate:
    ends = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(factor * end for end in ends))


def _speed(committed: float, ratio: Estimate, errors: Sequence[float]) -> Estimate:
    speed = committed / ratio.value
    down = math.hypot(*errors, math.log(ratio.high / ratio.value))
    up = math.hypot(*errors, math.log(ratio.value / ratio.low))
    return Estimate(speed, speed * math.exp(-down), speed * math.exp(up))
