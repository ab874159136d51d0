"""The sweep: rounds of seeded random order, stored one by one, until all is known.

It can be resumed at any point between its first and its last round.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from rich.console import Console

from evict_profile.cells import Cell, Sample, cells_of
from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import ConfigError, Interrupted, RunnerError
from evict_profile.io import parse_share
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import to_mapping
from evict_profile.runner import RunnerCrash, RunnerRefusal, take_clocks
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.machine import Watch, watch
from evict_profile.sweep.plan import (
    AdaptivePlan,
    FitGuide,
    GridPlan,
    SweepPlan,
    round_order,
    sample_seed,
    samples_left,
)
from evict_profile.sweep.session import OpenRunner
from evict_profile.sweep.store import Header, Store, failed_cells, history

MAX_CRASHES = 3
"""A runner that dies more often has a fault that no skipped cell explains."""


@dataclass
class Sweep:
    """A sweep in progress: where its samples come from and where they go."""

    session: OpenRunner
    store: Store
    plan: SweepPlan
    watch: Watch
    display: ProgressBar
    deadline: Deadline
    shard: str = "1/1"
    crashes: int = 0
    openings: int = 0

    def run(self) -> bool:
        """Measure until the plan has no open cell; False when stopped before.

        Each round's samples are stored before the next round begins; so is the
        finished part of a round that a deadline or Ctrl-C cuts short.
        """
        self._record_infeasible()
        self.openings = len({*self.store.frame()["session"], ""})
        last, seed = 0, self.session.spec.seed
        while not self.deadline.reached():
            frame = self.store.frame()
            number, cells = next_round(frame, self.session.grid, self.plan, seed)
            if not cells:
                return True
            assert number > last, f"round {number} was measured to its end before"
            if 0 < last < number <= self.session.spec.openings:
                self._reopen()
            last = number
            samples = list(self._measure_round(number, cells, frame))
            if samples:
                self.store.append(samples)
        return False

    def _reopen(self) -> None:
        self.display.say("opening the runner anew, so that openings average out")
        self.session.restart()
        self.openings += 1

    def _record_infeasible(self) -> None:
        recorded = (self.store.frame()["round"] == 0).any()
        if recorded or not self.session.grid.infeasible:
            return
        self.store.append(
            Sample(cell, round=0, order=order, seed=0, status="infeasible", reason=why)
            for order, (cell, why) in enumerate(self.session.grid.infeasible)
        )

    def _measure_round(
        self, number: int, cells: Sequence[tuple[int, Cell]], frame: pd.DataFrame
    ) -> Iterator[Sample]:
        seen = decided_by(frame, self.session.grid)
        rule = self.session.spec.stop
        start, taken = time.monotonic(), 0
        expected = samples_left(seen, [cell for _, cell in cells], rule)
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
        session = f"{self.shard} #{self.openings}"
        blank = Sample(cell, number, order, seeds[0], session=session)
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
        if self.crashes >= MAX_CRASHES:
            raise RunnerError(
                f"the runner ended {self.crashes} times ({crash}); mend its cause and "
                "run the same command again: all finished rounds are kept"
            )
        self.display.say(f"{crash}; its cell is recorded as crashed, going on")
        self.session.restart()
        self.openings += 1


def next_round(
    frame: pd.DataFrame, grid: Grid, plan: SweepPlan, seed: int
) -> tuple[int, list[tuple[int, Cell]]]:
    """The next round's number and what is left of it, as (order, cell)."""
    last = int(frame["round"].max()) if len(frame) else 0
    for number in (max(last, 1), max(last, 1) + 1):
        before = frame[frame["round"] < number]
        cells = plan.open_cells(decided_by(before, grid))
        if not cells:
            return number, []
        order = round_order(cells, grid.anchor, seed, number)
        taken = set(cells_of(frame[frame["round"] == number]))
        left = [(i, cell) for i, cell in enumerate(order) if cell not in taken]
        if left:
            return number, left
    raise AssertionError("a round just begun has nothing left")


def decided_by(frame: pd.DataFrame, grid: Grid) -> dict[Cell, list[float]]:
    """What the plan decides by: a cell that failed once is closed for good."""
    infeasible = {cell for cell, _ in grid.infeasible}
    failed = failed_cells(frame)
    return {
        cell: [] if cell in failed else seen
        for cell, seen in history(frame).items()
        if cell not in infeasible
    }


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


GuideMaker = Callable[[ModelSpec, int, tuple[int, ...], Grid], FitGuide]
"""From the model, the layers measured, the captured widths and the cells."""


@dataclass(frozen=True)
class Limits:
    """What bounds one call: wall time, and which shard of the cells is ours."""

    max_minutes: float = float("inf")
    shard: str = "1/1"

    def __post_init__(self) -> None:
        # Not `< 0`: that lets nan through.
        if not self.max_minutes >= 0.0:
            raise ConfigError(
                f"--max-minutes {self.max_minutes:g}: must be a number of at least 0"
            )

    def own(self, grid: Grid) -> Grid:
        """The cells of our shard.

        Raises:
            ConfigError: the shard is not of the form i/n with 1 <= i <= n.
        """
        index, count = parse_share("--shard", self.shard)
        return grid.shard(index, count)


def run_sweep(
    spec: SweepSpec,
    model: ModelSpec,
    store: Store,
    make_guide: GuideMaker,
    limits: Limits,
    console: Console,
    python: str | None = None,
) -> bool:
    """Start or continue a sweep; True when its plan is finished.

    Raises:
        StoreError: the folder holds another plan or fingerprint, or another process
            is measuring into it.
        RunnerError: the runner cannot open the model, or fails the union test.
        Interrupted: by Ctrl-C; the samples up to then are stored.
    """
    whole = make_grid(spec, model)
    union_test_width(whole, model)
    grid = limits.own(whole)
    log = store.folder / "runner.log"
    with (
        store.locked(),
        OpenRunner(spec, model, grid, log, python) as session,
        progress_bar(console) as shown,
    ):
        for line in _begin(session, store, limits.shard):
            shown.say(line)
        deadline = Deadline(time.monotonic() + 60.0 * limits.max_minutes)
        ladder = tuple(session.opened["ladder"])
        guide = make_guide(session.model, session.layers, ladder, grid)
        plan = _plan(spec, grid, guide)
        events = watch(session.facts["device_kind"])
        ours = (session, store, plan, events, shown, deadline)
        sweep = Sweep(*ours, shard=limits.shard)
        with interruptible(deadline):
            finished = sweep.run()
            # Also when the time is up: a table without them knows no time of drafting.
            if not deadline.interrupted:
                _take_clocks(session, store, whole, shown)
    if deadline.interrupted:
        raise Interrupted(
            f"interrupted; {store.folder} is kept, the same command continues it"
        )
    return finished


def is_finished(store: Store, make_guide: GuideMaker) -> bool:
    """Whether a run has all that its plan asks for; no runner is opened.

    Raises:
        StoreError: its samples are damaged.
    """
    if not store.exists():
        return False
    header = store.header()
    spec, ladder = header.sweep, tuple(header.opened["ladder"])
    grid = Limits(shard=header.shard).own(make_grid(spec, header.model))
    layers = int(header.fingerprint["layers"])
    plan = _plan(spec, grid, make_guide(header.model, layers, ladder, grid))
    _, left = next_round(store.frame(), grid, plan, spec.seed)
    return not left


def _take_clocks(
    session: OpenRunner, store: Store, grid: Grid, shown: ProgressBar
) -> None:
    """Time the steps of drafting at every batch that has none, where there are any."""
    if not session.opened.get("clocks"):
        return
    batches = {cell.batch for cell in grid.cells}
    taken = [clock.batch for clock in store.clocks()]
    for clock in take_clocks(session.runner, batches, taken, shown.say):
        store.add_clock(clock)


def _plan(spec: SweepSpec, grid: Grid, guide: FitGuide) -> SweepPlan:
    if spec.plan == "adaptive":
        return AdaptivePlan(grid, spec.stop, spec.adaptive, guide)
    return GridPlan(grid, spec.stop, guide)


def _begin(session: OpenRunner, store: Store, shard: str) -> Iterator[str]:
    """Refuse a foreign run, or start a new one with the union test."""
    spec, model = session.spec, session.model
    draft = Header(model, spec, session.facts, session.opened, {}, shard, time.time())
    if store.exists():
        store.check_same_sweep(draft)
        yield f"continuing {store.folder}"
        return
    store.check_no_orphans()
    yield (
        f"{model.name}: {session.layers} of {model.moe_layers} MoE layers in "
        f"{model.dtype}, on {session.facts['device']}"
    )
    if reason := session.opened.get("dtype_reason"):
        yield f"{model.dtype}: {reason}"
    test = session.union_test()
    yield f"union test passed: {test.sentence()}"
    scaling = session.scaling_test()
    if scaling:
        yield scaling.sentence()
    readings = to_mapping(scaling) if scaling else None
    store.create(replace(draft, union_test=to_mapping(test), scaling_test=readings))
