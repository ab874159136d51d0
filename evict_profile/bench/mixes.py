"""Workloads: how hard text is from step to step, and from stretch to stretch.

What a rate should be long-run *over* depends on what decides how hard a step is. If it
is chance, step by step, then throughput is one ratio over all steps. If it is the text,
in stretches longer than a step, then a stretch holds a given number of *tokens*, not of
steps: time is the sum of each kind's tokens over its throughput, and the best rate is
each kind's own.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.bench.policies import Phase
from evict_profile.bench.trees import concentrations, draw_trees
from evict_profile.stats import Floats, Ints


@dataclass(frozen=True)
class Workload:
    """Steps of each kind of text, and the order in which they come.

    `order` holds places in the phases put end to end.
    """

    phases: tuple[Phase, ...]
    order: Ints

    def cut(self, nodes: int) -> "Workload":
        """The same steps with smaller trees."""
        phases = tuple(Phase(phase.trees.best(nodes)) for phase in self.phases)
        return Workload(phases, self.order)

    @cached_property
    def benefit(self) -> Floats:
        """Tokens expected of each width, in the order of time."""
        return np.concatenate([phase.benefit for phase in self.phases])[self.order]

    @cached_property
    def committed(self) -> Floats:
        """Tokens that each width brought, in the order of time."""
        return np.concatenate([phase.committed for phase in self.phases])[self.order]

    def by_phase(self, width: Ints) -> list[Ints]:
        """Widths in the order of time, sorted back into phases."""
        sorted_back = np.empty_like(width)
        sorted_back[self.order] = width
        ends = np.cumsum([len(phase.benefit) for phase in self.phases])
        return np.split(sorted_back, ends[:-1])


@dataclass(frozen=True)
class Mix:
    """Kinds of text in turn, each hard or easy by chance within itself.

    `easy_share` has one entry a kind. `stretch_steps` is how long each kind lasts
    before the next, None for all of it at once. `trust` is how often a draft token is
    right, over its claim.
    """

    name: str
    easy_share: tuple[float, ...]
    stretch_steps: tuple[int, ...] | None = None
    trust: float = 1.0

    def draw(self, seed: int, steps: int) -> Workload:
        """One simulation of `steps` steps, less what does not fill a stretch."""
        rng = np.random.default_rng(seed)
        kinds = len(self.easy_share)
        lengths = self.stretch_steps or (steps // kinds,) * kinds
        stretches = steps // sum(lengths)
        rows = [
            concentrations(rng, stretches * length, share)
            for share, length in zip(self.easy_share, lengths, strict=True)
        ]
        phases = tuple(Phase(draw_trees(rng, kind, self.trust)) for kind in rows)
        return Workload(phases, _in_turn(stretches, lengths))


def _in_turn(stretches: int, lengths: tuple[int, ...]) -> Ints:
    """Places in phases end to end, one stretch of each in turn."""
    places = np.arange(stretches * sum(lengths))
    kinds = np.split(places, stretches * np.cumsum(lengths)[:-1])
    in_turn = np.hstack([kind.reshape(stretches, -1) for kind in kinds])
    return in_turn.ravel()


BURST_STEPS = (16, 32)
"""About 64 tokens of each kind: a few lines of code, a few sentences."""
MIXES = (
    Mix("easy", (1.0,)),
    Mix("hard", (0.0,)),
    Mix("bimodal", (0.5,)),
    Mix("bursts", (1.0, 0.0), stretch_steps=BURST_STEPS),
    Mix("switch", (1.0, 0.0)),
    Mix("overconfident", (0.5,), trust=0.7),
    Mix("underconfident", (0.5,), trust=1.25),
)
