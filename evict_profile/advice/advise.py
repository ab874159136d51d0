"""How much faster each way to draft is at each batch.

A step of a way commits `committed` tokens and takes `ratio` reference steps, so it is
committed / ratio times as fast as plain decoding: the ratio is the accepted length that
breaks even. Where a server ran no plain decoding, both are over its smallest K. The
interval adds the relative errors of acceptance and of the ratio in quadrature.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from evict_profile.advice.drafting import drafter_of
from evict_profile.advice.lengths import AcceptedLengths
from evict_profile.advice.steps import (
    ONE,
    OfEstimate,
    OfServed,
    OfTable,
    Steps,
    Table,
    Unserved,
    served_step,
)
from evict_profile.errors import ConfigError, DataError
from evict_profile.served.growth import Basis
from evict_profile.served.table import ServedTable
from evict_profile.stats import WORTHWHILE, Estimate, Verdict
from evict_profile.table import MEASURED, CostTable, Outside

RAN = ("measured", "table", "other batch")
"""What a ratio rests on where this K ran; else it is carried from another one."""

MOST_STATED = 2
"""Largest K that is compared, over the largest whose acceptance is stated."""


@dataclass(frozen=True)
class Gain:
    """What drafting K gains over the reference, at a batch or over a traffic.

    Attributes:
        levels: K of a chain.
        basis: what its step rests on.
    """

    levels: int
    speed: Estimate
    basis: Basis

    @property
    def verdict(self) -> Verdict:
        return self.speed.verdict


G = TypeVar("G", bound=Gain)


def fastest(gains: Iterable[G]) -> G:
    return max(gains, key=lambda each: each.speed.value)


def lead(gains: Sequence[G]) -> G:
    """The fastest K that ran, unless one that did not is surely faster."""
    first = fastest([each for each in gains if each.basis in RAN] or gains)
    surely = [each for each in gains if each.speed.low > first.speed.value]
    return fastest(surely or [first])


@dataclass(frozen=True)
class DraftOption(Gain):
    """One way to draft at one batch.

    Attributes:
        ratio: its step over the reference's.
        accepted: tokens that a step commits.
        break_even: committed tokens at which it is as fast as the reference.
    """

    name: str
    width: int
    accepted: Estimate
    ratio: Estimate
    break_even: Estimate
    step_us: float | None = None

    @property
    def committed(self) -> float:
        return self.accepted.value


@dataclass(frozen=True)
class BatchAdvice:
    """All ways at a batch; the first is the reference."""

    batch: int
    ways: tuple[DraftOption, ...]

    @property
    def by_levels(self) -> dict[int, DraftOption]:
        """By K; of trees cut to several widths, the widest."""
        return {way.levels: way for way in self.ways}

    @cached_property
    def lead(self) -> DraftOption:
        """The way to draft that is compared with the reference first."""
        return lead(self.ways[1:])

    @property
    def best(self) -> DraftOption:
        """The lead if it gains more than one per cent, else the reference."""
        gains = self.ways[1:] and self.lead.speed.value > WORTHWHILE
        return self.lead if gains else self.ways[0]


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
        """Of a table as in its file, by default at its smallest context.

        `asked` are the batches at which to answer without a table.
        """
        kind = drafter_of(drafter, table)
        if table is None and context is not None:
            raise ConfigError(
                "--context: steps of other servers are of no one context; give a "
                "table, or leave --context out"
            )
        sweep = isinstance(table, CostTable) and table.origin == MEASURED
        if level_ms is not None and not sweep:
            raise ConfigError(
                "--draft-level-ms is added to the steps of a sweep; the whole steps of "
                "a server have drafting in them, and an estimate has that of other "
                "servers; leave it out"
            )
        if table is None:
            return cls(Unserved(asked=asked or (1,)), lengths, kind)
        if isinstance(table, ServedTable):
            return cls(OfServed(table, one_context(table, context)), lengths, kind)
        at = min(table.axes.context) if context is None else context
        if not sweep:
            return cls(OfEstimate(table, at, outside), lengths, kind)
        served = served_step(table, at, level_ms, kind, outside)
        return cls(OfTable(table, at, served), lengths, kind)

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches at which a draft can be compared."""
        every, found, wrong = self.steps.batches(), list[int](), list[DataError]()
        for batch in every:
            try:
                found += [batch] * (len(self.at(batch).ways) > 1)
            except DataError as error:
                wrong.append(error)
        if found:
            return tuple(found)
        if wrong:
            raise wrong[0]
        table = self.steps.table
        raise ConfigError(
            f"{table and table.path}: covers no draft at any of its batches "
            f"{', '.join(map(str, every))}; sweep wider, or serve a chain (topk 1)"
        )

    def at(self, batch: int) -> BatchAdvice:
        """Every way that is known at a batch; a `DataError` where none can be."""
        reference, lengths = self.steps.reference_drafts(batch), self.lengths.at(batch)
        levels = lengths.levels.tolist()
        if reference not in levels:
            raise ConfigError(
                f"plain decoding was not served at batch {batch}, and --accept states "
                f"no length of K = {reference}, which stands for it; give one"
            )
        base = levels.index(reference)
        limit = MOST_STATED * (lengths.longest_stated or math.inf)
        found = [self._option(batch, lengths, base, base)]
        for way, drafts in enumerate(levels):
            if way != base and drafts <= limit:
                with suppress(DataError):
                    found.append(self._option(batch, lengths, way, base))
        return BatchAdvice(batch, tuple(found))

    def _option(
        self, batch: int, lengths: AcceptedLengths, way: int, base: int
    ) -> DraftOption:
        width, levels = int(lengths.width[way]), int(lengths.levels[way])
        found = self.steps.ratio(batch, width, levels)
        committed, against = (float(lengths.committed[each]) for each in (way, base))
        plain_us = self.steps.reference_us(batch)
        errors = [lengths.half_width[each] for each in {way, base} - {0}]
        return DraftOption(
            name=lengths.name(way),
            levels=levels,
            width=width,
            accepted=_accepted(committed, lengths.half_width[way], levels + 1.0),
            ratio=found.value,
            basis=found.basis,
            break_even=_times(found.value, against),
            speed=ONE
            if way == base
            else _speed(committed / against, found.value, errors, levels + 1.0),
            step_us=plain_us and plain_us * found.value.value,
        )


def one_context(table: ServedTable, context: float | None) -> float | None:
    """The context that is asked for, else the one that ran."""
    if context is not None and not table.contexts:
        raise ConfigError(
            f"{table.path}: no run states its context, so none can be chosen; leave "
            "--context out, or import runs with a column context"
        )
    if context is None and len(table.contexts) > 1:
        known = ", ".join(f"{each:.0f}" for each in table.contexts)
        raise ConfigError(
            f"{table.path}: runs are at contexts of {known} tokens; say which with "
            "--context"
        )
    return min(table.contexts, default=None) if context is None else context


def _accepted(committed: float, half_width: float, most: float) -> Estimate:
    """Within what a step can commit, 1 to `most`; all of it for too few prompts."""
    low, high = committed * math.exp(-half_width), committed * math.exp(half_width)
    return Estimate(committed, max(low, 1.0), min(high, most))


def _times(estimate: Estimate, factor: float) -> Estimate:
    ends = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(factor * end for end in ends))


def _speed(
    committed: float, ratio: Estimate, errors: Sequence[float], most: float
) -> Estimate:
    """A speed-up; its upper end is at most `most`, which a step can commit."""
    speed = committed / ratio.value
    down = math.hypot(*errors, math.log(ratio.high / ratio.value))
    up = math.hypot(*errors, math.log(ratio.value / ratio.low))
    high = speed * math.exp(up)
    capped = max(speed, min(high, most)) if math.isfinite(high) else high
    return Estimate(speed, speed * math.exp(-down), capped)
