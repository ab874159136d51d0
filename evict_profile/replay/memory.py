"""How long does a step's benefit tell of the next ones? Is two steps' memory right?

The runtime's rule maximises throughput over its last steps and this one, and half of
what it remembers fades in two steps. That is right if a reply is easy and hard in
stretches of about that length. Two measurements say how it is on a trace: how the
benefit of a step is correlated with that of a later one in the same reply, as the full
tree is walked; and how fast the rule is with other memories.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.replay.contest import Contest
from evict_profile.replay.ground import Ground
from evict_profile.replay.guided import guided, remembering
from evict_profile.replay.policies import RATE
from evict_profile.replay.walk import tokens_per_s
from evict_profile.runtime.past import MEMORY_HALF_LIFE_STEPS
from evict_profile.stats import Estimate, Floats, Ints

LAGS = tuple(range(1, 17))
HALF_LIVES = (0.5, 1.0, 2.0, 4.0, 8.0, 32.0)
NORMAL = 1.96
"""Two-sided 95 % of a normal distribution."""


@dataclass(frozen=True)
class Lag:
    """Correlation of two steps of a reply, so many steps apart.

    Attributes:
        accepted: of draft tokens accepted of the full tree.
        claimed: of what the drafter expected, the sum of path probabilities.
        noise: what unrelated steps would stay within, with 95 % probability.
    """

    steps: int
    accepted: float
    claimed: float
    noise: float


@dataclass(frozen=True)
class HalfLife:
    """The rule "rate" with one memory, over itself with the runtime's."""

    steps: float
    over_default: Estimate


@dataclass(frozen=True)
class Memory:
    """What a trace says of the runtime's memory."""

    lags: tuple[Lag, ...]
    half_lives: tuple[HalfLife, ...]

    @property
    def best(self) -> HalfLife:
        """The memory that is fastest on this trace."""
        return max(self.half_lives, key=lambda each: each.over_default.value)

    @property
    def right(self) -> bool:
        """Whether no other memory is surely better by more than a hundredth."""
        found = [each.over_default for each in self.half_lives]
        return not any(each.above_one and each.value > 1.01 for each in found)


def memory(contest: Contest) -> Memory:
    """Correlations along replies, and the rule with other memories."""
    ground, depth = contest.ground, contest.ground.depth
    default = tokens_per_s(contest.sums(guided(contest.table, depth)[RATE]))

    def over_default(steps: float) -> Estimate:
        if steps == MEMORY_HALF_LIFE_STEPS:
            return contest.bootstrap.estimate(default / default)
        sums = contest.sums(lambda: remembering(contest.table, depth, steps))
        return contest.bootstrap.estimate(tokens_per_s(sums) / default)

    found = tuple(HalfLife(steps, over_default(steps)) for steps in HALF_LIVES)
    return Memory(correlations(ground), found)


def correlations(ground: Ground) -> tuple[Lag, ...]:
    """Autocorrelation of a step's benefit at some lags, replies taken together.

    Lags at which no reply has two steps are left out.
    """
    level = ground.drafted(ground.depth)
    walks = [full_walk(ground, reply) for reply in range(len(ground.first))]
    accepted = [level.accepted[rows].sum(axis=1).astype(float) for rows in walks]
    claimed = [level.path_prob[rows].sum(axis=1) for rows in walks]
    found = []
    for lag in LAGS:
        pairs = sum(max(len(rows) - lag, 0) for rows in walks)
        if pairs:
            noise = NORMAL / pairs**0.5
            hit, hoped = (autocorrelation(all_, lag) for all_ in (accepted, claimed))
            found.append(Lag(lag, hit, hoped, noise))
    return tuple(found)


def full_walk(ground: Ground, reply: int) -> Ints:
    """Steps of a reply as the full tree walks it."""
    level = ground.drafted(ground.depth)
    row, rows = int(ground.first[reply]), []
    while row >= 0:
        rows.append(row)
        committed = np.array([1 + int(level.accepted[row].sum())])
        row = int(ground.onward(np.array([row]), committed)[0])
    return np.array(rows)


def autocorrelation(series: list[Floats], lag: int) -> float:
    """Correlation of values `lag` apart within each series, about their common mean.

    Zero where all values are the same.
    """
    together = np.concatenate(series)
    mean, variance = together.mean(), together.var()
    products = [(one[lag:] - mean) * (one[:-lag] - mean) for one in series]
    if not variance:
        return 0.0
    return float(np.concatenate(products).mean() / variance)
