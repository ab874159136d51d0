"""Shards of one sweep become a run, where their machines are equal: an A/A test.

Equal fingerprints say that machines have the same parts, not that they run alike: one
may be hotter, or share its memory with a neighbour. Every shard measures the anchor, in
every round and at the same union, so machines can be compared there as one is with
itself. How much one differs from itself is known too: by the noise of the anchor, and
by what sets sessions of a runner apart (`sweep.latency`). What is beyond both is a
difference of machines, and would pass for what its cells cost.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, Cell, with_latency
from evict_profile.errors import GateError, StoreError
from evict_profile.records import differences
from evict_profile.stats import median_of_draws
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.latency import half_width_of
from evict_profile.sweep.store import Store, other_plan

FLOOR = 2.5
"""In standard errors of noise, as `CERTAIN` of `sweep.latency`."""


class Difference(NamedTuple):
    """How much one shard's machine is slower at the anchor than another's.

    Attributes:
        size: relative; noise explains up to `floor`.
    """

    names: tuple[str, str]
    size: float
    floor: float

    @property
    def equal(self) -> bool:
        """Whether noise explains it."""
        return abs(self.size) <= self.floor

    def __str__(self) -> str:
        first, second = self.names
        return (
            f"{second} against {first} {self.size:+.1%} at the anchor, noise floor "
            f"{self.floor:.1%}"
        )


class _Level(NamedTuple):
    log_us: float
    floor: float


def merge(sources: list[Store], target: Store) -> None:
    """Put the shards of one plan together in a new run."""
    if target.exists():
        raise StoreError(f"{target.folder}: holds a sweep already; choose a new folder")
    headers = [source.header() for source in sources]
    for source, header in zip(sources[1:], headers[1:], strict=True):
        reasons = differences(header.fingerprint, headers[0].fingerprint)
        if reasons := reasons + other_plan(header, headers[0]):
            raise StoreError(
                f"{source.folder}: does not belong to {sources[0].folder} "
                f"({'; '.join(reasons)}); merge only shards of one plan"
            )
    shards = sorted(header.shard for header in headers)
    count = int(shards[0].split("/")[1])
    whole = sorted(f"{index}/{count}" for index in range(1, count + 1))
    if shards != whole:
        raise StoreError(
            f"{target.folder}: was given shards {', '.join(shards)}, and the whole is "
            f"{', '.join(whole)}; give each shard of the plan once"
        )
    frames = [source.frame() for source in sources]
    for source, frame in zip(sources, frames, strict=True):
        if frame.empty:
            raise StoreError(
                f"{source.folder}: holds no sample; run its sweep again, or copy its "
                "parts into it"
            )
    check_equal(sources)
    clocks = {clock.batch: clock for s in sources for clock in s.clocks()}
    with target.locked():
        target.check_no_orphans()
        for index, (header, frame) in enumerate(zip(headers, frames, strict=True)):
            named = frame.assign(session=frame["session"].replace("", header.shard))
            for number, part in named.groupby("round"):
                target.add(part, int(str(number)), index)
        for batch in sorted(clocks):
            target.add_clock(clocks[batch])
        # Last, so that a merge cut short is no run.
        target.create(replace(headers[0], shard="1/1"))


def differences_between(stores: Sequence[Store]) -> list[Difference]:
    """Compare the shards of a sweep two by two."""
    first = stores[0].header()
    anchor = make_grid(first.sweep, first.model).anchor
    levels = _levels([(s.header().shard, s.frame()) for s in stores], anchor)
    found = []
    for (one, a), (other, b) in combinations(levels.items(), 2):
        floor = np.hypot(a.floor, b.floor)
        size = np.expm1(b.log_us - a.log_us)
        found.append(Difference((one, other), float(size), float(floor)))
    return found


def check_equal(stores: Sequence[Store]) -> None:
    """Check that shards may be merged."""
    if apart := [found for found in differences_between(stores) if not found.equal]:
        raise GateError(
            f"shards are not of equal machines: {'; '.join(map(str, apart))}; measure "
            "them on machines that are, or the whole sweep on one (without --shard; "
            "in a fleet, with 'shards: 1')"
        )


def _levels(
    shards: Sequence[tuple[str, pd.DataFrame]], anchor: Cell
) -> dict[str, _Level]:
    """The log latency of the anchor on each shard, as the merged run has it."""
    whole = pd.concat([frame.assign(shard=name) for name, frame in shards])
    timed = with_latency(whole)
    same = [timed[name] == getattr(anchor, name) for name in CELL_FIELDS]
    own = timed[np.logical_and.reduce(same)]
    missing = {name for name, _ in shards} - set(own["shard"])
    if missing:
        raise GateError(
            f"shards {', '.join(sorted(missing))} never measured the anchor, so "
            "whether machines are equal is unknown; see the reason in their samples"
        )
    return {str(name): _level(rows) for name, rows in own.groupby("shard")}


def _level(rows: pd.DataFrame) -> _Level:
    log_us = np.log(rows["latency_us"].to_numpy())
    _, error = median_of_draws(log_us, len(log_us))
    alone = half_width_of(np.zeros(1), np.zeros((1, 1)))
    floor = np.hypot(FLOOR * error, alone / np.sqrt(rows["session"].nunique()))
    return _Level(float(np.median(log_us)), float(floor))
