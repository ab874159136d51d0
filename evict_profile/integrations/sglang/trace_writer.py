"""Traces of a live server as files: parts of evict-trace/1, each a whole trace."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.records import to_mapping
from evict_profile.table import DraftClock
from evict_profile.traces.schema import COLUMNS, Metadata, mark
from evict_profile.traces.trace import About

STEPS_PER_PART = 256
IDLE_S = 0.3
KEPT_CLOCKS = 512


@dataclass(frozen=True)
class StageTimes:
    """Of one step: its draft levels, the target's forward, and everything else."""

    draft_us: tuple[float, ...]
    verify_us: float
    fixed_us: float


class TraceWriter:
    """Writes steps when enough are there, or when the server has nothing to do.

    SGLang ends its processes by SIGKILL, so there is no last moment to write in: what
    is lost then is the last second. The folder of the parts is read as one trace.
    """

    def __init__(self, folder: Path, about: About) -> None:
        # Once now: the first write takes seconds beside a scheduler that spins idly.
        pq.write_table(COLUMNS.empty_table(), pa.BufferOutputStream())
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._about = folder, about
        # In a container every server has the same process id.
        self._server = f"{int(time.time())}.{os.getpid()}"
        self._rows: list[dict[str, Any]] = []
        self._times: dict[int, list[StageTimes]] = {}
        self._steps = self._parts = 0
        self._stepped_s = 0.0
        self._failed: Exception | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._flush_when_idle, daemon=True).start()

    def add(self, rows: list[dict[str, Any]], batch: int, times: StageTimes) -> None:
        """Add a step of `batch` requests; raises what writing in an idle moment did."""
        if self._failed:
            raise self._failed
        with self._lock:
            kept = self._times.setdefault(batch, [])
            kept.append(times)
            del kept[:-KEPT_CLOCKS]
            self._rows += [{**row, **to_mapping(times)} for row in rows]
            self._stepped_s = time.monotonic()
            self._steps += 1
            if self._steps % STEPS_PER_PART == 0:
                self.flush()

    def flush(self) -> None:
        """Write what was recorded since the last part."""
        if not self._rows:
            return
        clocks = tuple(self._clock(batch) for batch in sorted(self._times))
        table = pa.Table.from_pylist(self._rows, schema=COLUMNS)
        path = self._folder / f"{self._server}-{self._parts:06}.parquet"
        unfinished = path.with_suffix(".unfinished")
        pq.write_table(mark(table, Metadata(self._about, clocks)), unfinished)
        unfinished.replace(path)
        self._rows, self._parts = [], self._parts + 1

    def _flush_when_idle(self) -> None:
        while self._failed is None:
            time.sleep(IDLE_S)
            with self._lock:
                if time.monotonic() - self._stepped_s > IDLE_S:
                    try:
                        self.flush()
                    except Exception as error:
                        self._failed = error  # the next step raises it

    def _clock(self, batch: int) -> DraftClock:
        """Medians over whole steps at a batch size.

        All levels are drafted as one graph, so that any depth takes the time of all; a
        step that drafts nothing extends the drafter's cache as well.
        """
        draft_us = median(times.draft_us[0] for times in self._times[batch])
        fixed_us = median(times.fixed_us for times in self._times[batch])
        levels = (0.0, *[draft_us] * self._about.depth)
        return DraftClock(batch, levels, fixed_us, fixed_us)
