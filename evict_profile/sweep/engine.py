"""The sweep: rounds of seeded random order, stored one by one, until all is known."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pandas as pd
from rich.console import Console

from evict_profile.cells import Cell, Sample, cells_of
from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import ConfigError, Interrupted, MeasurementError
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import to_mapping
from evict_profile.runner import RunnerCrash, RunnerRefusal, RunnerStopped
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.grid import make_grid, too_few
from evict_profile.sweep.machine import CpuWatch, GpuWatch, load, watch
from evict_profile.sweep.plan import GridPlan, round_order, sample_seed
from evict_profile.sweep.session import OpenRunner
from evict_profile.sweep.store import Header, Store

DAY_S = 86400.0
MAX_CRASHES = 3
"""A runner that dies more often has a fault that no skipped cell explains."""


class Round(NamedTuple):
    number: int
    cells: list[tuple[int, Cell]]
    samples: int


@dataclass
class Sweep:
    session: OpenRunner
    store: Store
    plan: GridPlan
    watch: CpuWatch | GpuWatch
    display: ProgressBar
    deadline: Deadline
    crashes: int = 0
    sessions: int = 0

    def run(self) -> bool:
        """Measure until the plan has no open cell; False when stopped before."""
        self._record_infeasible()
        self.sessions = len({*self.store.frame()["session"], ""})
        spec, complete = self.session.spec, 0
        while not self.deadline.reached():
            frame = self.store.frame()
            due = next_round(frame, self.plan, spec.seed, complete)
            if not due.cells:
                return True
            if 0 < complete < due.number <= spec.sessions:
                self._reopen("starting the runner again, so that sessions average out")
            samples: list[Sample] = []
            try:
                samples += self._measure_round(due, len(frame))
            except RunnerStopped:
                self._append(samples)
                raise
            self._append(samples)
            complete = due.number
        return False

    def _append(self, samples: list[Sample]) -> None:
        if samples:
            self.store.append(samples)

    def _reopen(self, why: str) -> None:
        self.display.say(why)
        self.session.restart()
        self.sessions += 1

    def _record_infeasible(self) -> None:
        infeasible = self.plan.grid.infeasible
        if infeasible and not (self.store.frame()["round"] == 0).any():
            self.store.append(
                Sample(cell, 0, order, seed=0, status="infeasible", reason=why)
                for order, (cell, why) in enumerate(infeasible)
            )

    def _measure_round(self, due: Round, stored: int) -> Iterator[Sample]:
        start, taken = time.monotonic(), 0
        for order, cell in due.cells:
            if self.deadline.reached():
                return
            measured = self._measure(cell, due.number, order)
            yield from measured
            taken += len(measured)
            pace_s = (time.monotonic() - start) / taken
            left, samples = max(0, due.samples - taken), stored + taken
            seconds = min(left * pace_s, max(0.0, self.deadline.seconds_left()))
            self.display.show(
                f"round {due.number}: {len(due.cells)} cells open, {samples} samples, "
                f"about {seconds / 60.0:.1f} min left",
                samples,
                left,
            )

    def _measure(self, cell: Cell, number: int, order: int) -> list[Sample]:
        spec = self.session.spec
        repeats = range(spec.samples_per_round)
        seeds = [sample_seed(spec.seed, number, cell, repeat) for repeat in repeats]
        session = f"#{self.sessions}"
        blank = Sample(cell, number, order, seeds[0], session=session)
        self.watch.events()
        try:
            readings = self.session.runner.measure(cell, seeds)
        except RunnerRefusal as refusal:
            self.display.say(f"{cell}: {refusal}; recorded as {refusal.kind}, going on")
            return [replace(blank, status=refusal.kind, reason=str(refusal))]
        except RunnerCrash as crash:
            self._after(crash)
            return [replace(blank, status="crashed", reason=str(crash))]
        blank = replace(blank, events=self.watch.events())
        pairs = zip(seeds, readings, strict=True)
        return [judged(replace(blank, seed=seed, reading=r)) for seed, r in pairs]

    def _after(self, crash: RunnerCrash) -> None:
        self.crashes += 1
        if self.crashes >= MAX_CRASHES:
            raise MeasurementError(
                f"the runner ended {self.crashes} times ({crash}); fix its cause and "
                "run the same command again: all finished rounds are kept"
            )
        self._reopen(f"{crash}; its cell is recorded as crashed, going on")


def next_round(
    frame: pd.DataFrame, plan: GridPlan, seed: int, complete: int = 0
) -> Round:
    """The first round with something left, after `complete`; empty if none."""
    last = int(frame["round"].max()) if len(frame) else 0
    first = max(last, complete + 1)
    for number in (first, first + 1):
        due = plan.samples_due(frame[frame["round"] < number])
        if not due:
            return Round(number, [], 0)
        order = round_order(list(due), plan.grid.anchor, seed, number)
        taken = set(cells_of(frame[frame["round"] == number]))
        left = [(i, cell) for i, cell in enumerate(order) if cell not in taken]
        if left:
            samples = sum(due.get(cell, 0) for _, cell in left)
            return Round(number, left, samples)
    raise AssertionError("a round just begun has nothing left")


def judged(sample: Sample) -> Sample:
    """A timed sample, marked as a mismatch if it is of other work or of no time."""
    cell, ran = sample.cell, sample.reading
    forced = cell.part == "layers" and cell.split != "natural"
    if not 0.0 < ran.clock_us < math.inf or ran.reference_us <= 0.0:
        clocks = f"{ran.clock_us:g} us, reference {ran.reference_us:g} us"
        reason = f"no work takes such a time: {clocks}"
    elif forced and not ran.union_low == ran.union_high == cell.union:
        unions = f"{ran.union_low}..{ran.union_high}"
        reason = f"asked for U={cell.union}, ran {unions} over the layers"
    elif not abs(ran.at_unix - time.time()) < DAY_S:  # NaN compares as false
        reason = f"at_unix {ran.at_unix:g} is not the time of this sample in seconds"
    elif ran.observed_width < cell.width:
        reason = f"asked for n={cell.width}, ran {ran.observed_width}"
    else:
        return sample
    return replace(sample, status="mismatch", reason=reason)


Say = Callable[[str], None]


def run_sweep(
    spec: SweepSpec,
    model: ModelSpec,
    store: Store,
    max_minutes: float = math.inf,
    console: Console | None = None,
    python: str | None = None,
) -> bool:
    """Start or continue a sweep; True when its plan is finished.

    Args:
        store: the run folder; the samples of each round are stored as it ends.
        max_minutes: of measuring.
        console: shows progress; by default standard error.
        python: interpreter that runs the engine; by default this one.

    Raises:
        ConfigError: the plan cannot be measured here.
        DataError: the folder holds a sweep of another plan, model or machine.
        MeasurementError: the union test failed, or the runner ended three times.
        Interrupted: by Ctrl-C; what was measured is stored.
    """
    # Not `< 0`: that lets nan through.
    if not max_minutes >= 0.0:
        raise ConfigError(
            f"--max-minutes {max_minutes:g}: must be a number of at least 0"
        )
    console = console or Console(stderr=True)
    grid = make_grid(spec, model)
    if lacks := too_few(grid.measured, spec.whole):
        more = ", or raise its cells" if spec.grid.cells else ""
        raise ConfigError(
            f"sweep '{spec.name}': its grid has {lacks}; add widths or unions to it"
            f"{more}"
        )
    union_test_width(grid, model)
    log, deadline = store.folder / "runner.log", Deadline()
    others, quiet = load()  # before the runner is one of them
    with (
        store.locked(),
        progress_bar(console) as shown,
        OpenRunner(
            spec,
            model,
            grid,
            log,
            python,
            partial(shown.show, left=1),
            deadline,
        ) as session,
    ):
        if session.facts["device_kind"] == "cpu" and not quiet:
            shown.say(f"{others}: stop them, or a gate may refuse the table")
        _begin(session, store, shown.say)
        deadline.at_monotonic = time.monotonic() + 60.0 * max_minutes
        plan = plan_of(store.header())
        events = watch(session.facts["device_kind"])
        sweep = Sweep(session, store, plan, events, shown, deadline)
        with interruptible(deadline):
            try:
                finished = sweep.run()
                _take_clocks(session, store, deadline, shown.say)
            except RunnerStopped as stopped:
                finished = False
                shown.say(str(stopped))
    if deadline.interrupted:
        raise Interrupted(
            f"interrupted; {store.folder} is kept, the same command continues it"
        )
    return finished


def is_finished(store: Store) -> bool:
    if not store.exists():
        return False
    header = store.header()
    plan = plan_of(header)
    return not next_round(store.frame(), plan, header.sweep.seed).cells


def plan_of(header: Header) -> GridPlan:
    return GridPlan(make_grid(header.sweep, header.model), header.sweep.stop)


def _take_clocks(
    session: OpenRunner, store: Store, deadline: Deadline, say: Say
) -> None:
    """Time drafting at every batch without a clock, also when the time is up."""
    if not session.opened.get("clocks"):
        return
    deadline.at_monotonic = math.inf
    taken = {clock.batch for clock in store.clocks()}
    try:
        for batch in sorted({*session.spec.grid.batch} - taken):
            if deadline.interrupted:
                return
            store.add_clock(session.runner.clock(batch))
    except RunnerRefusal as refusal:
        say(f"no clocks of drafting: {refusal}")


def _begin(session: OpenRunner, store: Store, say: Say) -> None:
    spec, model = session.spec, session.model
    draft = Header(model, spec, session.facts, session.opened, {}, time.time())
    if store.exists():
        store.check_same_sweep(draft)
        say(f"continuing {store.folder}")
        return
    store.check_no_orphans()
    say(
        f"{model.name}: {session.layers} of {model.moe_layers} MoE layers in "
        f"{model.dtype}, on {session.facts['device']}"
    )
    if reason := session.opened.get("dtype_reason"):
        say(f"{model.dtype}: {reason}")
    stop, sessions = spec.stop, spec.sessions
    say(
        f"{len(session.grid.measured)} cells of {stop.min_samples} to "
        f"{stop.max_samples} samples in {sessions} session{'s' * (sessions > 1)}; the "
        "first round says how long that takes"
    )
    test = session.union_test()
    say(f"union test passed: {test.sentence()}")
    readings = None
    if scaling := session.scaling_test():
        say(scaling.sentence())
        readings = to_mapping(scaling)
    store.create(replace(draft, union_test=to_mapping(test), scaling_test=readings))
