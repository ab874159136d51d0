"""How long a sweep takes, said before it begins."""

import math
import time
from collections.abc import Iterable

import numpy as np

from evict_profile.cells import Cell
from evict_profile.physics import layer_work, non_moe_work
from evict_profile.runner import RunnerCrash, RunnerRefusal
from evict_profile.stats import Floats
from evict_profile.sweep.checks import SCALING_REPEATS, UNION_REPEATS
from evict_profile.sweep.plan import sample_seed
from evict_profile.sweep.session import OpenRunner

TIMED_CELLS = 8
"""From the least to the most work. In six sweeps a fit of eight gave the mean of all
cells to 7 %, and one of four or five to 44 %."""
TEST_SAMPLES = 3 * UNION_REPEATS + 2 * SCALING_REPEATS


def forecast(session: OpenRunner) -> str:
    """State cells, samples and sessions, and the time that they take here."""
    stop, cells = session.spec.stop, len(session.grid.measured)
    sessions, limits = session.spec.sessions, (stop.min_samples, stop.max_samples)
    plan = (
        f"{cells} cells of {_to(map(str, limits))} samples in {sessions} "
        f"{'session' if sessions == 1 else 'sessions'}"
    )
    first_s, again_s = mean_sample_s(session)
    if not again_s:
        return plan

    def time_of(samples: int) -> str:
        rounds = math.ceil(samples / session.spec.samples_per_round)
        opened = min(sessions, rounds)
        again = rounds * session.spec.samples_per_round - opened
        cell_s = opened * first_s + again * again_s
        tests_s = TEST_SAMPLES * again_s + (opened - 1) * session.open_s
        total_s = cells * cell_s + tests_s
        return f"{total_s:.0f} s" if total_s < 90.0 else f"{total_s / 60.0:.1f} min"

    return f"{plan}: about {_to(map(time_of, limits))} on this machine"


def mean_sample_s(session: OpenRunner) -> tuple[float, float]:
    """Mean wall time of a cell's first sample in a session, which also lays out its
    forward, and of its later ones; 0 where no cell could be timed.

    A fit of fixed time, bytes and operations, none of them negative, has the mean.
    """
    from scipy.optimize import nnls

    def seconds_at_peak(cell: Cell) -> float:
        return float(_work(session, cell)[1:].sum())

    ordered = sorted(session.grid.measured, key=seconds_at_peak)
    places = np.linspace(0, len(ordered) - 1, TIMED_CELLS).round().astype(int)
    cells = [ordered[place] for place in dict.fromkeys(places.tolist())]
    timed = {cell: times for cell in cells if (times := _timed_s(session, cell))}
    if not timed:
        return 0.0, 0.0
    work = np.array([_work(session, cell) for cell in timed])
    first_s, again_s = np.array(list(timed.values())).T
    terms, _ = nnls(work / again_s[:, None], np.ones(len(work)))
    every = np.array([_work(session, cell) for cell in ordered])
    mean_s = float((every @ terms).mean())
    return mean_s * float(first_s.sum() / again_s.sum()), mean_s


def _work(session: OpenRunner, cell: Cell) -> Floats:
    """One, and seconds of bytes and of operations: at the measured copy, at ten to a
    byte."""
    model, layers = session.model, session.layers
    if cell.part == "non_moe":
        work, times = non_moe_work(model, cell), 1
    else:
        union = cell.union or model.uniform_union(cell.tokens)
        work, times = layer_work(model, cell, union), layers
    per_s = session.opened["bandwidth_gbps"] * 1e9
    return np.array(
        [1.0, times * work.bytes_moved / per_s, times * work.flops / per_s / 10.0]
    )


def _timed_s(session: OpenRunner, cell: Cell) -> list[float]:
    """Wall times of two samples, or none of a cell that the runner cannot measure."""
    times_s = []
    try:
        for repeat in range(2):
            begun = time.monotonic()
            session.runner.measure(cell, [sample_seed(0, -3, cell, repeat)])
            times_s.append(time.monotonic() - begun)
    except RunnerRefusal:
        return []
    except RunnerCrash:
        session.restart()
        return []
    return times_s


def _to(limits: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(limits))
