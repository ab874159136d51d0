"""The sweep: rounds of seeded random order, stored one by one, until all is known."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from evict_profile.cells import Cell, Sample, cells_of
from evict_profile.errors import RunnerError
from evict_profile.progress import ProgressBar
from evict_profile.sweep.client import RunnerCrash, RunnerRefusal
from evict_profile.sweep.machine import Watch
from evict_profile.sweep.plan import Plan, round_order, sample_seed
from evict_profile.sweep.session import Session
from evict_profile.sweep.stop import samples_needed
from evict_profile.sweep.store import Store, failed_cells, history

MOST_CRASHES = 3
"""A runner that dies more often has a fault that no skipped cell explains."""


@dataclass
class Deadline:
    """When to stop: at a wall time, or at Ctrl-C."""

    at_monotonic: float = float("inf")
    interrupted: bool = False

    def reached(self) -> bool:
        """Whether no further sample should be started."""
        return self.interrupted or self.seconds_left() <= 0.0

    def seconds_left(self) -> float:
        """Until the wall time."""
        return self.at_monotonic - time.monotonic()


@dataclass
class Sweep:
    """A sweep in progress: where its samples come from and where they go."""

    session: Session
    store: Store
    plan: Plan
    anchor: Cell
    watch: Watch
    display: ProgressBar
    deadline: Deadline
    crashes: int = 0

    def run(self) -> bool:
        """Measure until the plan has no open cell; False when stopped before.

        Each round's samples are stored before the next round begins; so is the
        finished part of a round that a deadline or Ctrl-C cuts short.
        """
        self._record_infeasible()
        while not self.deadline.reached():
            frame = self.store.frame()
            number, cells = self._next_round(frame)
            if not cells:
                return True
            samples = list(self._measure_round(number, cells, frame))
            if samples:
                self.store.append(samples)
        return False

    def _record_infeasible(self) -> None:
        recorded = (self.store.frame()["round"] == 0).any()
        if recorded or not self.session.grid.infeasible:
            return
        self.store.append(
            Sample(cell, round=0, order=order, seed=0, status="infeasible", reason=why)
            for order, (cell, why) in enumerate(self.session.grid.infeasible)
        )

    def _next_round(self, frame: pd.DataFrame) -> tuple[int, list[tuple[int, Cell]]]:
        """The next round's number and what is left of it, as (order, cell)."""
        last = int(frame["round"].max()) if len(frame) else 0
        for number in (max(last, 1), max(last, 1) + 1):
            before = frame[frame["round"] < number]
            cells = self.plan.open_cells(self._history(before))
            if not cells:
                return number, []
            order = round_order(cells, self.anchor, self.session.spec.seed, number)
            taken = set(cells_of(frame[frame["round"] == number]))
            left = [(i, cell) for i, cell in enumerate(order) if cell not in taken]
            if left:
                return number, left
        raise AssertionError("a round just begun has nothing left")

    def _history(self, frame: pd.DataFrame) -> dict[Cell, list[float]]:
        """What the plan decides by: a cell that failed once is closed for good."""
        infeasible = {cell for cell, _ in self.session.grid.infeasible}
        failed = failed_cells(frame)
        return {
            cell: [] if cell in failed else seen
            for cell, seen in history(frame).items()
            if cell not in infeasible
        }

    def _measure_round(
        self, number: int, cells: Sequence[tuple[int, Cell]], frame: pd.DataFrame
    ) -> Iterator[Sample]:
        seen, rule = self._history(frame), self.session.spec.stop
        start, taken = time.monotonic(), 0
        expected = sum(samples_needed(seen.get(cell, ()), rule) for _, cell in cells)
        for order, cell in cells:
            if self.deadline.reached():
                return
            for sample in self._measure(cell, number, order):
                yield sample
                taken += 1
            pace_s = (time.monotonic() - start) / max(1, taken)
            left = max(0, expected - taken)
            left_s = min(left * pace_s, self.deadline.seconds_left())
            samples = len(frame) + taken
            self.display.show(
                f"round {number}: {len(cells)} cells open, {samples} samples, about "
                f"{left_s / 60.0:.1f} min left",
                samples,
                left,
            )

    def _measure(self, cell: Cell, number: int, order: int) -> list[Sample]:
        spec = self.session.spec
        repeats = range(spec.samples_per_round)
        seeds = [sample_seed(spec.seed, number, cell, repeat) for repeat in repeats]
        blank = Sample(cell, round=number, order=order, seed=seeds[0])
        self.watch.events()
        try:
            answers = self.session.runner.measure(cell, seeds)
        except RunnerRefusal as refusal:
            self.display.say(f"{cell}: {refusal}; recorded as {refusal.kind}, going on")
            return [replace(blank, status=refusal.kind, reason=str(refusal))]
        except RunnerCrash as crash:
            self._restart(crash)
            return [replace(blank, status="crashed", reason=str(crash))]
        events = self.watch.events()
        return [replace(blank, **judge(cell, a), events=events) for a in answers]

    def _restart(self, crash: RunnerCrash) -> None:
        self.crashes += 1
        if self.crashes >= MOST_CRASHES:
            raise RunnerError(
                f"the runner ended {self.crashes} times ({crash}); mend its cause and "
                "run the same command again: all finished rounds are kept"
            )
        self.display.say(f"{crash}; its cell is recorded as crashed, going on")
        self.session.restart()


def judge(cell: Cell, answer: dict[str, Any]) -> dict[str, Any]:
    """A runner's answer, marked as a mismatch where other work ran than asked for."""
    low, high = answer["union_low"], answer["union_high"]
    forced = cell.part == "layers" and cell.split != "natural"
    if forced and not low == high == cell.union:
        reason = f"asked for U={cell.union}, ran {low}..{high} over the layers"
        return {**answer, "status": "mismatch", "reason": reason}
    if answer["observed_width"] < cell.width:
        reason = f"asked for n={cell.width}, ran {answer['observed_width']}"
        return {**answer, "status": "mismatch", "reason": reason}
    return answer
