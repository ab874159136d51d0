"""Shards of one sweep are one run.

Equal fingerprints do not prove that machines have the same speed. The drift gate
compares them when the run is fitted, by the cells that all shards measure.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from evict_profile.errors import DataError
from evict_profile.records import differences
from evict_profile.sweep.store import Header, Store, other_plan
from evict_profile.table import DraftClock


class SweepRun(NamedTuple):
    """What a sweep left, of all its shards.

    Attributes:
        folder: of the run, or of its first shard.
        frame: all samples; those of a shard have a session of their own.
    """

    folder: Path
    header: Header
    frame: pd.DataFrame
    clocks: tuple[DraftClock, ...]


def merged(stores: Sequence[Store]) -> SweepRun:
    """The run of one folder, or of the folders of all shards of one plan."""
    first, *others = stores
    if not others:
        return SweepRun(first.folder, first.header(), first.frame(), first.clocks())
    headers = [store.header() for store in stores]
    _check_one_plan(stores, headers)
    frames = map(_with_sessions, stores, headers)
    clocks = {clock.batch: clock for store in stores for clock in store.clocks()}
    whole = pd.concat(frames).sort_values(["round", "order"], ignore_index=True)
    header = replace(headers[0], shard="1/1")
    return SweepRun(
        first.folder, header, whole, tuple(clocks[b] for b in sorted(clocks))
    )


def _check_one_plan(stores: Sequence[Store], headers: Sequence[Header]) -> None:
    for store, header in zip(stores[1:], headers[1:], strict=True):
        reasons = differences(header.fingerprint, headers[0].fingerprint)
        if reasons := reasons + other_plan(header, headers[0]):
            raise DataError(
                f"{store.folder}: does not belong to {stores[0].folder} "
                f"({'; '.join(reasons)}); give only shards of one plan"
            )
    shards = sorted(header.shard for header in headers)
    stated = shards[0].rpartition("/")[2]
    count = int(stated) if stated.isdecimal() else len(shards)
    every = sorted(f"{index}/{count}" for index in range(1, count + 1))
    if shards != every:
        raise DataError(
            f"these are shards {', '.join(shards)} of a plan of {', '.join(every)}; "
            "give each shard once"
        )


def _with_sessions(store: Store, header: Header) -> pd.DataFrame:
    frame = store.frame()
    if frame.empty:
        raise DataError(
            f"{store.folder}: holds no sample; run its sweep again, or copy its "
            "parts into it"
        )
    return frame.assign(session=frame["session"].replace("", header.shard))
