"""How long a sweep takes, said before it begins."""

import math
import time
from collections.abc import Iterable

import numpy as np

from evict_profile.cells import Cell
from evict_profile.sweep.checks import (
    SCALING_REPEATS,
    UNION_REPEATS,
    union_test_cells,
)
from evict_profile.sweep.plan import sample_seed
from evict_profile.sweep.session import OpenRunner


def forecast(session: OpenRunner) -> str:
    """State cells, samples and sessions, and the minutes that they take here.

    The cells of the union test are timed twice each: a cell's first sample in a session
    also lays its forward out. They stand for all cells, whose mean they come near.
    """
    stop, sessions = session.spec.stop, session.spec.sessions
    cells = union_test_cells(session.grid, session.model)
    times_s = [[_wall_s(session, cell, n) for n in range(2)] for cell in cells]
    first_s, again_s = np.mean(times_s, axis=0)
    tests = UNION_REPEATS * len(cells) + 2 * SCALING_REPEATS

    def time_of(samples: int) -> str:
        rounds = math.ceil(samples / session.spec.samples_per_round)
        opened = min(sessions, rounds)
        again = rounds * session.spec.samples_per_round - opened
        cell_s = opened * first_s + again * again_s
        restarts_s = (opened - 1) * session.open_s
        total_s = len(session.grid.measured) * cell_s + tests * again_s + restarts_s
        return f"{total_s:.0f} s" if total_s < 90.0 else f"{total_s / 60.0:.1f} min"

    limits = stop.min_samples, stop.max_samples
    return (
        f"{len(session.grid.measured)} cells of {_to(map(str, limits))} samples in "
        f"{sessions} {'session' if sessions == 1 else 'sessions'}: about "
        f"{_to(map(time_of, limits))} on this machine, by {2 * len(cells)} of them"
    )


def _wall_s(session: OpenRunner, cell: Cell, repeat: int) -> float:
    begun = time.monotonic()
    session.runner.measure(cell, [sample_seed(0, -3, cell, repeat)])
    return time.monotonic() - begun


def _to(limits: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(limits))
