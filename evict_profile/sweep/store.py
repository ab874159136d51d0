"""Samples on disk: one Parquet part a round, and what they are samples of.

RUN/sweep.json              model, sweep, fingerprint, union test
RUN/parts/RRRRR-PP.parquet  the samples of round R
RUN/clocks.json             times of drafting, where the runner has them
RUN/lock                    held by the process that measures into it
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from evict_profile.cells import (
    CELL_FIELDS,
    OK,
    Sample,
    cell_of,
    to_frame,
    with_numbers,
)
from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.config.sweep import gather_engine
from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.records import Facts, differences, digest, parse, to_mapping
from evict_profile.run_folder import RunFolder

ONE_SHARD = "1/1"
"""What headers of earlier versions state of a whole sweep."""


@dataclass(frozen=True)
class Header:
    """What a run's samples are samples of.

    Attributes:
        fingerprint: facts that must match for samples to be comparable.
        opened: capture_sizes, bandwidth_gbps, bytes_per_expert, dtype_reason.
        scaling_test: None where all layers, or only one, are measured.
    """

    model: ModelSpec
    sweep: SweepSpec
    fingerprint: Facts
    opened: Facts
    union_test: Facts
    started_unix: float
    scaling_test: Facts | None = None

    @property
    def plan_sha256(self) -> str:
        """Digest of sweep and model: the same plan asks for the same cells."""
        plan = {"sweep": to_mapping(self.sweep), "model": to_mapping(self.model)}
        return digest(plan)


class Store(RunFolder):
    """A sweep's run folder: `Store(folder)`, which need not exist yet."""

    header_name = "sweep.json"
    parts_name = "parts"
    noun = "samples"

    def create(self, header: Header) -> None:
        self.write_header(to_mapping(header))

    def header(self) -> Header:
        if self.folder.is_file():
            raise DataError(
                f"{self.folder}: is a file; give the run folder of a sweep, which "
                "holds sweep.json"
            )
        if not self.exists():
            raise DataError(
                f"{self.folder}: holds no sweep; run 'evict-profile sweep MODEL --out "
                f"{self.folder}' first"
            )
        content, source = self.read_header(), str(self.header_path)
        if content.get("shard") not in (None, ONE_SHARD):
            raise DataError(
                f"{source}: holds shard {content['shard']} of a plan, and a sweep is "
                "measured whole; sweep anew into another --out"
            )
        if isinstance(sweep := content.get("sweep"), dict):
            gather_engine(sweep)
        return parse(Header, content, source, extra_keys=True)

    def append(self, samples: Iterable[Sample]) -> None:
        """Write the samples of one round, or of the rest of it, as one part."""
        frame = to_frame(samples)
        number = int(frame["round"].iloc[0])
        names = [p.stem[6:] for p in self.parts.glob(f"{number:05d}-*.parquet")]
        taken = [int(part) for part in names if part.isdecimal()]
        self.add(frame, number, 1 + max(taken, default=-1))

    def add(self, frame: pd.DataFrame, number: int, index: int) -> None:
        rows = pa.Table.from_pandas(frame, preserve_index=False)
        self.add_part(f"{number:05d}-{index:02d}", rows)

    def frame(self) -> pd.DataFrame:
        parts = [part.to_pandas() for part in self.read_parts()]
        if not parts:
            return to_frame([])
        whole = pd.concat(parts, ignore_index=True)
        lacking = {*to_frame([]).columns} - {*whole.columns}
        if not lacking and whole["session"].isna().any():
            lacking = {"session"}
        if lacking:
            raise DataError(
                f"{self.parts}: samples lack {', '.join(sorted(lacking))}; put whole "
                "copies of the parts back, or sweep anew into another --out"
            )
        whole = with_numbers(whole)
        self._check_none_twice(whole)
        return whole.sort_values(["round", "order"], ignore_index=True)

    def _check_none_twice(self, frame: pd.DataFrame) -> None:
        timed = frame[frame["status"] == OK]
        twice = timed[timed.duplicated([*CELL_FIELDS, "session", "seed", "at_unix"])]
        if len(twice):
            first = twice.iloc[0]
            raise DataError(
                f"{self.folder}: holds {len(twice)} samples twice, first "
                f"{cell_of(first)} in round {first['round']}; delete the part that is "
                "a copy, or fix a runner that answers from memory and sweep anew"
            )

    def add_clock(self, clock: DraftClock) -> None:
        self.add_note("clocks", [to_mapping(item) for item in (*self.clocks(), clock)])

    def clocks(self) -> tuple[DraftClock, ...]:
        source = str(self.folder / "clocks.json")
        return tuple(
            parse(DraftClock, c, source) for c in self.note("clocks", list) or ()
        )

    def check_same_sweep(self, header: Header) -> None:
        stored = self.header()
        reasons = other_plan(header, stored)
        self.check_same(header.fingerprint, stored.fingerprint, reasons)


def other_plan(mine: Header, theirs: Header) -> list[str]:
    if mine.plan_sha256 == theirs.plan_sha256:
        return []
    names = [{"sweep": h.sweep.name, "model": h.model.name} for h in (mine, theirs)]
    return differences(*names) or ["the sweep or the model was edited since"]
