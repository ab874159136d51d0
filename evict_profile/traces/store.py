"""A recording on disk: one Parquet part a reply, one file when all are there.

    FILE.parts/plan.json         what is recorded, on what
    FILE.parts/00012.parquet     the plan's reply 12
    FILE.parts/clock-4.json      times of whole steps at batch 4
    FILE                         all of it; the parts are then deleted

Each is written in one move, so a killed recording loses the reply it was in.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.config.edge import parse, read_mapping
from evict_profile.errors import StoreError
from evict_profile.files import make_folder, require_writable, write_atomically
from evict_profile.signed import Facts, differences
from evict_profile.traces.load import recorded_facts
from evict_profile.traces.plan import Plan
from evict_profile.traces.schema import marked
from evict_profile.traces.trace import About, Clock


class TraceStore:
    """The file of a recording, and the folder of its parts.

    Raises:
        StoreError: neither could be written.
    """

    def __init__(self, file: Path) -> None:
        require_writable(file)
        self.file = file
        self.folder = file.with_name(f"{file.name}.parts")
        self.log = file.with_name(f"{file.name}.log")
        self._plan_path = self.folder / "plan.json"

    def begin(self, plan: Plan, about: About) -> bool:
        """Start or continue a recording; False where it is finished already.

        Raises:
            StoreError: another recording is there; every fact that differs is named.
        """
        facts = facts_of(plan, about)
        if self.file.exists():
            self._refuse_others(facts, recorded_facts(self.file))
            shutil.rmtree(self.folder, ignore_errors=True)
            return False
        if self._plan_path.exists():
            self._refuse_others(facts, read_mapping(self._plan_path))
        else:
            self._create(facts)
        return True

    def reference_us(self) -> float:
        """The reference that what is there was told by; 0 where nothing is yet."""
        if self.file.exists():
            return float(recorded_facts(self.file).get("reference_us", 0.0))
        if self._plan_path.exists():
            return float(read_mapping(self._plan_path).get("reference_us", 0.0))
        return 0.0

    def continues(self) -> bool:
        """Whether some of it is recorded."""
        return any(self.folder.glob("*.parquet"))

    def has_reply(self, index: int) -> bool:
        """Whether this reply of the plan is recorded."""
        return self._part(index).exists()

    def keep_reply(self, index: int, rows: pa.Table) -> None:
        """Store a whole reply."""
        write_atomically(self._part(index), lambda path: _write(rows, path))

    def has_clock(self, batch: int) -> bool:
        """Whether this batch size is timed."""
        return self._clock(batch).exists()

    def keep_clock(self, clock: Clock) -> None:
        """Store the times of a batch size."""
        text = json.dumps(asdict(clock))
        write_atomically(self._clock(clock.batch), lambda path: path.write_text(text))

    def finish(self, plan: Plan, about: About) -> int:
        """Put all parts into the file and delete them; the steps it holds.

        Raises:
            StoreError: a part is damaged; the message names it.
        """
        places = (self._part(index) for index, _ in enumerate(plan.replies()))
        rows = pa.concat_tables([_read(path) for path in places])
        clocks = tuple(self._read_clock(batch) for batch in plan.batches)
        whole = marked(rows, about, clocks, recorded=facts_of(plan, about))
        write_atomically(self.file, lambda path: _write(whole, path))
        shutil.rmtree(self.folder)
        return len(whole)

    def _create(self, facts: Facts) -> None:
        if self.continues():
            raise StoreError(
                f"{self.folder}: holds replies but no plan.json, so what they are of "
                "is unknown; put it back, or choose another --out"
            )
        make_folder(self.folder)
        text = json.dumps(facts, indent=2, sort_keys=True)
        write_atomically(self._plan_path, lambda path: path.write_text(text + "\n"))

    def _refuse_others(self, mine: Facts, theirs: Facts) -> None:
        if reasons := differences(mine, theirs):
            raise StoreError(
                f"{self.file}: holds another recording ({'; '.join(reasons)}); choose "
                "another --out"
            )

    def _part(self, index: int) -> Path:
        return self.folder / f"{index:05d}.parquet"

    def _clock(self, batch: int) -> Path:
        return self.folder / f"clock-{batch}.json"

    def _read_clock(self, batch: int) -> Clock:
        path = self._clock(batch)
        return parse(Clock, read_mapping(path), str(path))


def facts_of(plan: Plan, about: About) -> Facts:
    """What two recordings must share to be one, as JSON gives it back."""
    facts: Facts = json.loads(json.dumps({**asdict(about), **asdict(plan)}))
    return facts


def _write(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, compression="zstd")


def _read(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"{path}: is damaged ({str(error).splitlines()[0]}); delete this file and "
            "run the same command again, which records it anew"
        ) from error
