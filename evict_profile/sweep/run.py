"""One sweep from its first to its last round, resumable at any point between."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import FrameType

from rich.console import Console

from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.errors import ConfigError, Interrupted
from evict_profile.io import make_folder, parse_share, sole_writer
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.sweep.clocks import take_clocks
from evict_profile.sweep.engine import Deadline, Sweep
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.machine import watch
from evict_profile.sweep.plan import AdaptivePlan, FitUncertainty, GridPlan, Plan
from evict_profile.sweep.session import Session
from evict_profile.sweep.store import Header, Store
from evict_profile.sweep.union_test import union_test_width

STDERR = 2
STOPPING = b"\nstopping when what is under way is done; Ctrl-C again stops now\n"

UncertaintyMaker = Callable[[ModelSpec, int], FitUncertainty]
"""From the model and the layers measured: what tells an adaptive plan where to go."""


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
    make_uncertainty: UncertaintyMaker,
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
    make_folder(store.folder)
    log = store.folder / "runner.log"
    with (
        sole_writer(store.folder),
        Session(spec, model, grid, log, python) as session,
        progress_bar(console) as shown,
    ):
        for line in _begin(session, store, limits.shard):
            shown.say(line)
        deadline = Deadline(time.monotonic() + 60.0 * limits.max_minutes)
        plan = _plan(spec, grid, make_uncertainty(session.model, session.layers))
        events = watch(session.facts["device_kind"])
        sweep = Sweep(session, store, plan, grid.anchor, events, shown, deadline)
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


def _take_clocks(
    session: Session, store: Store, grid: Grid, shown: ProgressBar
) -> None:
    """Time the steps of drafting at every batch that has none, where there are any."""
    if not session.opened.get("clocks"):
        return
    batches = {cell.batch for cell in grid.cells}
    taken = [clock.batch for clock in store.clocks()]
    for clock in take_clocks(session.runner, batches, taken, shown.say):
        store.add_clock(clock)


def _plan(spec: SweepSpec, grid: Grid, uncertainty: FitUncertainty) -> Plan:
    if spec.plan == "adaptive":
        return AdaptivePlan(grid, spec.stop, spec.adaptive, uncertainty)
    return GridPlan(grid, spec.stop)


def _begin(session: Session, store: Store, shard: str) -> Iterator[str]:
    """Refuse a foreign run, or start a new one with the union test."""
    spec, model = session.spec, session.model
    draft = Header(model, spec, session.facts, session.opened, {}, shard, time.time())
    if store.exists():
        store.refuse_others(draft)
        yield f"continuing {store.folder}"
        return
    store.refuse_orphans()
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
    readings = asdict(scaling) if scaling else None
    store.create(replace(draft, union_test=asdict(test), scaling_test=readings))


@contextmanager
def interruptible(deadline: Deadline) -> Iterator[Deadline]:
    """Turn the first Ctrl-C into the end of the sample in flight, and say so.

    A second one ends the process as usual.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        deadline.interrupted = True
        signal.signal(signal.SIGINT, before)
        # A signal may come within a print, which cannot be entered twice.
        os.write(STDERR, STOPPING)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield deadline
    finally:
        signal.signal(signal.SIGINT, before)
