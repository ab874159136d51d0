"""Shards of one sweep become a run.

Equal fingerprints do not prove that machines have the same speed. The drift gate
compares them when the run is exported, by the cells that all shards measure.
"""

from dataclasses import replace

from evict_profile.errors import DataError
from evict_profile.records import differences
from evict_profile.sweep.store import Store, other_plan


def merge(sources: list[Store], target: Store) -> None:
    """Put the shards of one plan together in a new run."""
    if target.exists():
        raise DataError(f"{target.folder}: holds a sweep already; choose a new folder")
    headers = [source.header() for source in sources]
    for source, header in zip(sources[1:], headers[1:], strict=True):
        reasons = differences(header.fingerprint, headers[0].fingerprint)
        if reasons := reasons + other_plan(header, headers[0]):
            raise DataError(
                f"{source.folder}: does not belong to {sources[0].folder} "
                f"({'; '.join(reasons)}); merge only shards of one plan"
            )
    shards = sorted(header.shard for header in headers)
    count = int(shards[0].split("/")[1])
    whole = sorted(f"{index}/{count}" for index in range(1, count + 1))
    if shards != whole:
        raise DataError(
            f"{target.folder}: was given shards {', '.join(shards)}, and the whole is "
            f"{', '.join(whole)}; give each shard of the plan once"
        )
    frames = [source.frame() for source in sources]
    for source, frame in zip(sources, frames, strict=True):
        if frame.empty:
            raise DataError(
                f"{source.folder}: holds no sample; run its sweep again, or copy its "
                "parts into it"
            )
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
