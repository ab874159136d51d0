"""Samples on disk: one Parquet part a round, and what they are samples of.

    RUN/sweep.json              model, sweep, fingerprint, union test
    RUN/parts/RRRRR-PP.parquet  the samples of round R
    RUN/clocks.json             times of drafting, where the runner has them
    RUN/lock                    held by the process that measures into it

A part is written beside its place, flushed to the disk, and renamed: it is there
whole or not at all, whatever happens to the process.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa

from evict_profile.cells import OK, Cell, Sample, cells_of, to_frame, with_latency
from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.errors import StoreError
from evict_profile.io import make_folder, write_atomically
from evict_profile.records import parse
from evict_profile.signed import Facts, differences, digest
from evict_profile.sweep.clocks import Clock


@dataclass(frozen=True)
class Header:
    """What a run's samples are samples of.

    Attributes:
        fingerprint: facts that must match for samples to be comparable.
        opened: the runner's answers that are measurements of their own: ladder,
            bandwidth_gbps, bytes_per_expert; and dtype_reason, where it chose one.
        union_test: its readings, as in `union_test.UnionTest`.
        scaling_test: likewise; None where all layers, or only one, are measured.
        shard: "i/n".
    """

    model: ModelSpec
    sweep: SweepSpec
    fingerprint: Facts
    opened: Facts
    union_test: Facts
    shard: str
    started_unix: float
    scaling_test: Facts | None = None

    @property
    def plan_sha256(self) -> str:
        """Digest of sweep and model: the same plan asks for the same cells."""
        plan = {"sweep": asdict(self.sweep), "model": asdict(self.model)}
        return digest(plan)


class Store:
    """A run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        self.header_path = folder / "sweep.json"
        self.clocks_path = folder / "clocks.json"

    def exists(self) -> bool:
        """Whether a sweep has been started here."""
        return self.header_path.is_file()

    def create(self, header: Header) -> None:
        """Start a run.

        Raises:
            StoreError: the folder cannot be written.
        """
        make_folder(self.parts)
        text = json.dumps(asdict(header), indent=2, sort_keys=True)
        write_atomically(self.header_path, lambda p: p.write_text(text + "\n"))

    def header(self) -> Header:
        """What the samples are samples of.

        Raises:
            StoreError: missing or damaged.
        """
        try:
            content = json.loads(self.header_path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.folder}: holds no sweep; run 'evict-profile sweep --out "
                f"{self.folder}' first"
            ) from error
        except NotADirectoryError as error:
            raise StoreError(
                f"{self.folder}: is a file; give the run folder of a sweep, which "
                "holds sweep.json"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.header_path}: cannot be read ({error}); put a whole copy back, "
                "or sweep anew into another --out"
            ) from error
        return parse(Header, content, str(self.header_path), extra_keys=True)

    def append(self, samples: Iterable[Sample]) -> None:
        """Write the samples of one round, or of the rest of it, as one part."""
        frame = to_frame(samples)
        number = int(frame["round"].iloc[0])
        taken = [p.stem[6:] for p in self.parts.glob(f"{number:05d}-*.parquet")]
        index = 1 + max(map(int, taken), default=-1)
        path = self.parts / f"{number:05d}-{index:02d}.parquet"
        write_atomically(path, lambda p: frame.to_parquet(p, index=False))

    def frame(self) -> pd.DataFrame:
        """All samples, in the order measured.

        Raises:
            StoreError: a part is damaged; the message names it.
        """
        parts = [_read_part(path) for path in sorted(self.parts.glob("*.parquet"))]
        if not parts:
            return to_frame([])
        whole = pd.concat(parts, ignore_index=True)
        return whole.sort_values(["round", "order"], ignore_index=True)

    def add_clock(self, clock: Clock) -> None:
        """Keep the clock of one more batch."""
        kept = [asdict(each) for each in (*self.clocks(), clock)]
        text = json.dumps(kept, indent=1)
        write_atomically(self.clocks_path, lambda p: p.write_text(text + "\n"))

    def clocks(self) -> tuple[Clock, ...]:
        """Clocks of drafting, where the runner has them.

        Raises:
            StoreError: the file is damaged.
        """
        try:
            kept = json.loads(self.clocks_path.read_text(encoding="utf-8"))
            return tuple(parse(Clock, each, str(self.clocks_path)) for each in kept)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(
                f"{self.clocks_path}: cannot be read ({error}); delete it and run the "
                "same sweep again, which takes the clocks anew"
            ) from error

    def refuse_orphans(self) -> None:
        """Refuse to start a run over samples that no sweep.json accounts for.

        Raises:
            StoreError: the folder holds parts and no header.
        """
        if any(self.parts.glob("*.parquet")):
            raise StoreError(
                f"{self.folder}: holds samples but no sweep.json, so what they are "
                "samples of is unknown; put it back, or choose another --out"
            )

    def refuse_others(self, header: Header) -> None:
        """Refuse to go on with a sweep of another plan or fingerprint.

        Raises:
            StoreError: naming every fact that differs.
        """
        stored = self.header()
        reasons = differences(header.fingerprint, stored.fingerprint)
        reasons += _other_plan(header, stored)
        if stored.shard != header.shard:
            reasons.append(f"shard: {header.shard} here, {stored.shard} there")
        if reasons:
            raise StoreError(
                f"{self.folder}: holds samples that cannot be continued here "
                f"({'; '.join(reasons)}); choose another --out"
            )


def _other_plan(mine: Header, theirs: Header) -> list[str]:
    """The names that differ, or, under the same names, that something in them does."""
    if mine.plan_sha256 == theirs.plan_sha256:
        return []
    names = [{"sweep": h.sweep.name, "model": h.model.name} for h in (mine, theirs)]
    return differences(*names) or ["the sweep or the model was edited since"]


def merge(sources: list[Store], target: Store) -> None:
    """Put the shards of one plan together in a new run.

    Raises:
        StoreError: another plan or fingerprint, a shard given twice, or target in use.
    """
    if target.exists():
        raise StoreError(f"{target.folder}: holds a sweep already; choose a new folder")
    headers = [source.header() for source in sources]
    for source, header in zip(sources[1:], headers[1:], strict=True):
        reasons = differences(header.fingerprint, headers[0].fingerprint)
        if header.plan_sha256 != headers[0].plan_sha256:
            reasons.append("another sweep or model")
        if reasons:
            raise StoreError(
                f"{source.folder}: does not belong to {sources[0].folder} "
                f"({'; '.join(reasons)}); merge only shards of one plan"
            )
    _refuse_parts_of_a_plan([h.shard for h in headers], target)
    frames = [source.frame() for source in sources]
    make_folder(target.parts)
    for shard, frame in enumerate(frames):
        for number, part in frame.groupby("round"):
            path = target.parts / f"{number:05d}-{shard:02d}.parquet"
            write_atomically(path, partial(part.to_parquet, index=False))
    timed = {clock.batch: clock for s in sources for clock in s.clocks()}
    for batch in sorted(timed):
        target.add_clock(timed[batch])
    # Last, so that a merge cut short is no run.
    target.create(replace(headers[0], shard="1/1"))


def _refuse_parts_of_a_plan(given: list[str], target: Store) -> None:
    shards = sorted(given)
    count = int(shards[0].split("/")[1])
    whole = sorted(f"{index}/{count}" for index in range(1, count + 1))
    if shards != whole:
        raise StoreError(
            f"{target.folder}: was given shards {', '.join(shards)}, and the whole is "
            f"{', '.join(whole)}; give each shard of the plan once"
        )


def history(frame: pd.DataFrame) -> dict[Cell, list[float]]:
    """Latencies of each cell in the order measured; empty where all samples failed."""
    timed = with_latency(frame)
    latencies: dict[Cell, list[float]] = {}
    for cell, latency_us in zip(cells_of(timed), timed["latency_us"], strict=True):
        latencies.setdefault(cell, []).append(latency_us)
    return {**{cell: [] for cell in failed_cells(frame)}, **latencies}


def failed_cells(frame: pd.DataFrame) -> set[Cell]:
    """Cells with a sample that failed, whatever came before."""
    return set(cells_of(frame[frame["status"] != OK]))


def _read_part(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"{path}: is damaged ({str(error).splitlines()[0]}); delete this file and "
            "run the same sweep again, which measures what is then missing"
        ) from error
