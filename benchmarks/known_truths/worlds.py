"""Machines that are formulas: what verification truly costs, and how it is disturbed.

A cost is a function of tokens, U, context and batch, for the measured layers. Some lie
in the class that is fitted, a sum of hinges with bends on the grid; others bend between
the grid's levels, or not in straight lines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evict_profile.cells import Cell
from evict_profile.stats import Floats

TOP_K = 8
EXPERT_US, ROW_US, TOKEN_US, LAUNCH_US = 470.0, 9.0, 60.0, 500.0
LAYERS = 2


class Place(NamedTuple):
    """Where a forward's cost is asked for, float64 [places] each."""

    tokens: Floats
    union: Floats
    context: Floats
    batch: Floats

    @property
    def rows(self) -> Floats:
        """Mean rows of an activated expert."""
        rows: Floats = self.tokens * TOP_K / np.maximum(self.union, 1.0)
        return rows


Cost = Callable[[Place], Floats]
"""Microseconds of all measured layers."""


def in_class(at: Place) -> Floats:
    """Launch, expert weights, dense rows, cache, and rows of experts beyond eight."""
    attention = 0.02 * at.batch * at.context + 0.0004 * at.tokens * at.context
    beyond = ROW_US * at.union * np.maximum(at.rows - 8.0, 0.0)
    layer = LAUNCH_US + EXPERT_US * at.union + TOKEN_US * at.tokens + attention + beyond
    return LAYERS * layer


def captured(at: Place) -> Floats:
    """Forwards run at the next captured width, a power of two, and nobody says so."""
    width = 2.0 ** np.ceil(np.log2(np.maximum(at.tokens / at.batch, 1.0)))
    return in_class(at._replace(tokens=width * at.batch))


def with_extra(extra_us: Cost) -> Cost:
    """The cost in the class, and so much more in each layer."""
    return lambda at: in_class(at) + LAYERS * extra_us(at)


def head_us(tokens: Floats) -> Floats:
    """What runs beside the MoE layers."""
    return 900.0 + 70.0 * tokens


@dataclass(frozen=True)
class Disturbance:
    """What a sample of a sweep has on top of the truth, all as shares of it.

    Attributes:
        sigma: spread of one forward.
        tail: "normal", "heavy" (Student's t with two degrees), or "floor" (a hard
            floor and an upper tail), each with the truth as its median.
        outliers: share of forwards that take twice as long.
        half: share of time, in blocks, in which the machine has half its speed.
        reference: whether work beside tells how fast the machine was.
        cell: spread between cells, the same in each of a cell's samples.
        run: spread between runs as a whole.
        drift: change from the first sample to the last.
        slow: by how much it is slower for a time, and from when to when, of a sweep.
        repeats: whether each cell's first answer is given again and again.
    """

    sigma: float = 0.01
    tail: str = "normal"
    outliers: float = 0.0
    half: float = 0.0
    reference: bool = False
    cell: float = 0.0
    run: float = 0.0
    drift: float = 0.0
    slow: tuple[float, float, float] = (0.0, 0.0, 0.0)
    repeats: bool = False


class Machine:
    """A cost under one disturbance during one sweep."""

    def __init__(self, cost: Cost, disturbance: Disturbance, seed: int) -> None:
        self.cost, self.disturbance = cost, disturbance
        self._rng = np.random.default_rng(seed)
        self.reopen()
        self._cells: dict[Cell, float] = {}
        self._answers: dict[Cell, tuple[float, float]] = {}
        self._block, self._is_half = 0, False

    def reopen(self) -> None:
        """Begin another run, which differs as a whole."""
        self._run = float(np.exp(self.disturbance.run * self._rng.standard_normal()))

    def sample_us(self, cell: Cell, union: float, done: float) -> tuple[float, float]:
        """The clock and the reference of one forward; `done` is the sweep's progress.

        The reference is NaN where the machine has none.
        """
        if self.disturbance.repeats and cell in self._answers:
            return self._answers[cell]
        place = Place(*map(np.array, (cell.tokens, union, cell.context, cell.batch)))
        is_head = cell.part == "non_moe"
        true_us = head_us(place.tokens) if is_head else self.cost(place)
        drift, (slower, start, end) = self.disturbance.drift, self.disturbance.slow
        speed = self._speed()
        lasting = self._run * self._of_cell(cell) * (1.0 + drift * (done - 0.5))
        lasting *= 1.0 + slower * (start <= done < end)
        clock_us = float(true_us) * speed * lasting * self._forward()
        reference = 2e4 * speed * float(np.exp(0.004 * self._rng.standard_normal()))
        answer = clock_us, reference if self.disturbance.reference else float("nan")
        self._answers[cell] = answer
        return answer

    def _of_cell(self, cell: Cell) -> float:
        if cell not in self._cells:
            shift = self.disturbance.cell * self._rng.standard_normal()
            self._cells[cell] = float(np.exp(shift))
        return self._cells[cell]

    def _speed(self) -> float:
        """2 while the machine runs at half speed, in blocks of about 40 forwards."""
        if self._block == 0:
            self._block = int(self._rng.integers(20, 60))
            self._is_half = bool(self._rng.random() < self.disturbance.half)
        self._block -= 1
        return 2.0 if self._is_half else 1.0

    def _forward(self) -> float:
        noise, rng = self.disturbance, self._rng
        if noise.tail == "heavy":
            drawn = float(rng.standard_t(2)) * 0.7
        elif noise.tail == "floor":
            drawn = float(rng.gamma(0.5)) * 2.0 - 0.455
        else:
            drawn = float(rng.standard_normal())
        slow = 2.0 if rng.random() < noise.outliers else 1.0
        return slow * max(1.0 + noise.sigma * drawn, 0.2)


@dataclass(frozen=True)
class World:
    """A cost and a disturbance, under a name; `apart` is never used to choose by.

    Attributes:
        sessions: of the runner, each of which begins another run; None for as many as
            the sweep has.
    """

    name: str
    cost: Cost
    disturbance: Disturbance = Disturbance()
    apart: bool = False
    sessions: int | None = None

    @property
    def in_class(self) -> bool:
        """Whether the fit can be right, and the sweep can see how sessions differ."""
        return self.cost in {in_class, KNOT} and self.sessions is None


KNOT = with_extra(lambda at: 3.0 * TOKEN_US * np.maximum(at.tokens - 16.0, 0.0))
"""In the class, with a bend to be found at 16 tokens."""

BEYOND: dict[str, Cost] = {
    "square root": lambda at: 3.0 * TOKEN_US * (8.0 * np.sqrt(at.tokens) - at.tokens),
    "saturating": lambda at: (
        EXPERT_US * (90.0 * -np.expm1(-at.union / 90.0) - at.union)
    ),
    "tiles of 16": lambda at: 6.0 * at.union * (16.0 * np.ceil(at.rows / 16.0)),
    "small unions cached": lambda at: (
        -0.25 * EXPERT_US * np.where(at.union <= 12.0, at.union, 0.0)
    ),
    "contended": lambda at: 2e-4 * at.union * at.batch * at.context,
    "waves of 24 experts": lambda at: (
        0.3 * EXPERT_US * (24.0 * np.ceil(at.union / 24.0) - at.union)
    ),
}
"""What each layer takes beyond the class: no sum of hinges on the grid."""

WORLDS = (
    World("in class, 1 %", in_class),
    World("in class, 3 %", in_class, Disturbance(0.03)),
    World("in class, 8 %", in_class, Disturbance(0.08)),
    World("a knot to find, 3 %", KNOT, Disturbance(0.03)),
    World("heavy tails", in_class, Disturbance(0.015, tail="heavy")),
    World("floor and upper tail", in_class, Disturbance(0.02, tail="floor")),
    World("drift of 3 %", in_class, Disturbance(drift=0.03)),
    World("5 % take twice as long", in_class, Disturbance(outliers=0.05)),
    World("half speed a fifth of the time", in_class, Disturbance(half=0.2)),
    World("the same, with reference", in_class, Disturbance(half=0.2, reference=True)),
    World("cells differ by 2 %", in_class, Disturbance(cell=0.02)),
    World("runs differ by 2 %", in_class, Disturbance(run=0.02)),
    World("the same, opened once", in_class, Disturbance(run=0.02), sessions=1),
    World("captured, untold", captured),
    *(World(name, with_extra(extra)) for name, extra in BEYOND.items()),
    World(
        "tokens attend to each other",
        with_extra(lambda at: 1.5 * at.tokens**2 / at.batch),
        apart=True,
    ),
    World(
        "ever cheaper rows",
        with_extra(
            lambda at: 0.3 * EXPERT_US * at.union * np.log(np.maximum(at.rows, 1.0))
        ),
        apart=True,
    ),
    World(
        "a bend between levels, 3 %",
        with_extra(lambda at: 0.4 * EXPERT_US * np.maximum(at.union - 45.0, 0.0)),
        Disturbance(0.03),
        apart=True,
    ),
    World(
        "knot, heavy, outliers, drift",
        KNOT,
        Disturbance(0.02, "heavy", outliers=0.03, drift=0.02),
        apart=True,
    ),
)
