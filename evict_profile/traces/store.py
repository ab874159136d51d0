"""A recording on disk: one Parquet part a reply, one file when all are there.

    FILE.parts/plan.json         what is recorded, on what
    FILE.parts/00012.parquet     the plan's reply 12
    FILE.parts/clock-4.json      times of whole steps at batch 4
    FILE.parts/mass.json         other notes
    FILE.parts/lock              held by the process that records
    FILE                         all of it; the parts are then deleted

Each is written in one move, so a killed recording loses the reply it was in. Clocks
take seconds: a folder that holds nothing else is begun anew, whatever the plan.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.errors import StoreError
from evict_profile.io import check_writable, make_folder, sole_writer, write_atomically
from evict_profile.records import parse, read_mapping
from evict_profile.signed import Facts, differences
from evict_profile.traces.load import recorded_facts
from evict_profile.traces.schema import TRACE, Form, marked
from evict_profile.traces.trace import About, Clock


class Planned(Protocol):
    """What a recording asks for; a dataclass, whose fields two recordings share."""

    @property
    def batches(self) -> Sequence[int]:
        """Batch sizes whose whole steps are timed."""

    def replies(self) -> Iterator[object]:
        """What is recorded, in order."""


class TraceStore:
    """The file of a recording, and the folder of its parts.

    Raises:
        StoreError: neither could be written.
    """

    def __init__(self, file: Path, form: Form = TRACE) -> None:
        """`form`: the schema of the file."""
        check_writable(file)
        make_folder(file.parent)
        self.file, self.form = file, form
        self.folder = file.with_name(f"{file.name}.parts")
        self.log = file.with_name(f"{file.name}.log")
        self._plan_path = self.folder / "plan.json"
        self._finished = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others out; at the end, keep no parts but those of a reply to come.

        Raises:
            StoreError: another process is recording into it.
        """
        make_folder(self.folder)
        with sole_writer(self.folder):
            try:
                yield
            finally:
                if self._finished or not self.continues():
                    shutil.rmtree(self.folder)

    def begin(self, plan: Planned, about: About) -> bool:
        """Start or continue a recording; False where it is finished already.

        Raises:
            StoreError: another recording is there; every fact that differs is named.
        """
        facts = facts_of(plan, about)
        if self.file.exists():
            self._refuse_others(facts, recorded_facts(self.file, self.form))
            self._finished = True
            return False
        if self.continues():
            self._refuse_others(facts, self._begun())
        else:
            self._create(facts)
        return True

    def reference_us(self) -> float:
        """The reference that what is there was told by; 0 where nothing is yet."""
        if self.file.exists():
            return float(recorded_facts(self.file, self.form).get("reference_us", 0.0))
        if self.continues():
            return float(self._begun().get("reference_us", 0.0))
        return 0.0

    def continues(self) -> bool:
        """Whether some of it is recorded that took longer than clocks."""
        notes = {*self.folder.glob("*.json")} - {self._plan_path, *self._clocks()}
        return bool(notes) or any(self.folder.glob("*.parquet"))

    def left_over(self) -> bool:
        """Whether a plan is there of which nothing is recorded that would be lost."""
        return self._plan_path.exists() and not self.continues()

    def has_reply(self, index: int) -> bool:
        """Whether this reply of the plan is recorded."""
        return self._part(index).exists()

    def keep_reply(self, index: int, rows: pa.Table) -> None:
        """Store a whole reply."""
        write_atomically(self._part(index), lambda path: _write(rows, path))

    def has_clock(self, batch: int) -> bool:
        """Whether this batch size is timed."""
        return self.note(f"clock-{batch}") is not None

    def keep_clock(self, clock: Clock) -> None:
        """Store the times of a batch size."""
        self.keep_note(f"clock-{clock.batch}", asdict(clock))

    def note(self, name: str) -> Facts | None:
        """What was noted beside the replies under a name; None if nothing was."""
        path = self._note(name)
        return read_mapping(path) if path.exists() else None

    def keep_note(self, name: str, facts: Facts) -> None:
        """Note something beside the replies."""
        text = json.dumps(facts)
        write_atomically(self._note(name), lambda path: path.write_text(text))

    def finish(self, plan: Planned, about: About, **more: Any) -> int:
        """Put all parts into the file; the steps it holds.

        `more` is told in the file's metadata.

        Raises:
            StoreError: a part is damaged; the message names it.
        """
        places = (self._part(index) for index, _ in enumerate(plan.replies()))
        rows = pa.concat_tables([_read(path) for path in places])
        clocks = tuple(self._read_clock(batch) for batch in plan.batches)
        facts = facts_of(plan, about)
        whole = marked(rows, about, clocks, self.form, recorded=facts, **more)
        write_atomically(self.file, lambda path: _write(whole, path))
        self._finished = True
        return len(whole)

    def _begun(self) -> Facts:
        """The facts of the recording that is continued."""
        if not self._plan_path.exists():
            raise StoreError(
                f"{self.folder}: holds replies but no plan.json, so what they are of "
                "is unknown; put it back, or choose another --out"
            )
        return read_mapping(self._plan_path)

    def _create(self, facts: Facts) -> None:
        for path in self._clocks():
            path.unlink()
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

    def _note(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _clocks(self) -> Iterator[Path]:
        return self.folder.glob("clock-*.json")

    def _read_clock(self, batch: int) -> Clock:
        path = self._note(f"clock-{batch}")
        return parse(Clock, read_mapping(path), str(path), extra_keys=True)


def facts_of(plan: Planned, about: About) -> Facts:
    """What two recordings must share to be one, as JSON gives it back."""
    asked = asdict(plan)  # type: ignore[call-overload]
    facts: Facts = json.loads(json.dumps({**asdict(about), **asked}))
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
