"""Cuts: truncation rules with their constants, as functions of scores and state.

A cut sees the scores of all requests of a batch and a state that it carries from step
to step. Kept nodes are always closed under parents: scores never rise along a path, and
drafting order puts parents first. A request that has all its tokens has left the batch:
it drafts nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

Scores = tuple[Fraction, ...]
Batch = tuple[Scores, ...]
State = tuple[Fraction, ...]
Kept = frozenset[int]
Costs = tuple[Fraction, ...]
Levels = tuple[int, ...]


class Spent(NamedTuple):
    """What a cut may remember of a step: its scores, what it kept, what came out."""

    scores: Batch
    kept: tuple[Kept, ...]
    emitted: int


class Memory(NamedTuple):
    """What a cut carries on: its first state, and the state after a step.

    `start` takes the constants of the cut, `after` the state and `Spent` before them.
    """

    start: Callable[..., State] = lambda **constants: ()
    after: Callable[..., State] = lambda state, spent, **constants: state


NONE = Memory()
Order = Callable[[Scores], Sequence[int]]


class Cut:
    """A rule with its constants.

    A rule with an order counts the nodes of one request to be kept, from the scores in
    that order. One without keeps nodes of the whole batch.
    """

    def __init__(
        self,
        rule: Callable[..., Any],
        order: Order | None = None,
        memory: Memory = NONE,
        **constants: Fraction | int | tuple[Fraction | int, ...],
    ) -> None:
        self.rule = rule
        self.order = order
        self.constants = constants
        self.start = memory.start(**constants)
        self.after: Callable[[State, Spent], State] = partial(memory.after, **constants)

    def __str__(self) -> str:
        values = [v if isinstance(v, tuple) else (v,) for v in self.constants.values()]
        listed = (", ".join(map(str, each)) for each in values)
        constants = ", ".join(map(" ".join, zip(self.constants, listed, strict=True)))
        name = self.rule.__name__.title().replace("_", "")
        return f"{name}: {constants}"

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        if self.order:
            return tuple(self._keep_one(self.order, scores, state) for scores in batch)
        kept: tuple[Kept, ...] = self.rule(batch, state, **self.constants)
        return kept

    def _keep_one(self, order: Order, scores: Scores, state: State) -> Kept:
        nodes = order(scores)
        ordered = tuple(scores[node] for node in nodes)
        return frozenset(nodes[: self.rule(ordered, state, **self.constants)])


def drafted(scores: Scores) -> Sequence[int]:
    """Drafting order."""
    return range(len(scores))


def by_score(scores: Scores) -> Sequence[int]:
    """The highest scores first; of equals the one drafted first."""
    return sorted(range(len(scores)), key=lambda node: -scores[node])


def _reached_before(state: State, spent: Spent, bound: Fraction) -> State:
    return (Fraction(sum(reaching(bound, scores) for scores in spent.scores)),)


def _rate_so_far(
    state: State, spent: Spent, costs: Costs, **constants: Fraction
) -> State:
    time = costs[sum(map(len, spent.kept))]
    return (state[0] + spent.emitted, state[1] + time)


REACHED = Memory(lambda bound: (Fraction(1),), _reached_before)
"""How many nodes reached a bound in the step before."""
RATE = Memory(lambda costs, **constants: (Fraction(1), costs[0]), _rate_so_far)
"""The tokens and the time of all steps before."""


def fixed_width(scores: Scores, state: State, width: int) -> int:
    """The first `width` nodes."""
    return width


def lagged(scores: Scores, state: State, bound: Fraction) -> int:
    """As many nodes as reached `bound` in the step before."""
    return int(state[0])


def score_threshold(scores: Scores, state: State, bound: Fraction) -> int:
    """Every node whose score is at least `bound`, in score order."""
    return sum(score >= bound for score in scores)


def stop_at_rate(scores: Scores, state: State, costs: Costs, rate: Fraction) -> int:
    """Nodes until one is worth less than its marginal cost."""
    return first_drop(surpluses(scores, costs, rate))


def stop_at_drop(scores: Scores, state: State, costs: Costs) -> int:
    """Nodes until benefit over cost first falls."""
    return first_drop(ratios(scores, costs))


def ratio(scores: Scores, state: State, costs: Costs) -> int:
    """The width of the highest benefit over cost."""
    return argmax(ratios(scores, costs))


def rate(scores: Scores, state: State, costs: Costs, rate: Fraction) -> int:
    """The width of the highest benefit less rate times cost."""
    return argmax(surpluses(scores, costs, rate))


def online_rate(scores: Scores, state: State, costs: Costs) -> int:
    """`rate` at the rate of tokens over time of the steps before."""
    return argmax(surpluses(scores, costs, state[0] / state[1]))


def width_from_rate(scores: Scores, state: State, costs: Costs, bound: Fraction) -> int:
    """All nodes while past tokens over past time exceed `bound`, else one."""
    return len(scores) if state[0] / state[1] > bound else 1


def depth_at_bound(
    batch: Batch, state: State, levels: Levels, bound: Fraction
) -> tuple[Kept, ...]:
    """Levels while the scores of the deepest sum to at least `bound`."""
    low = (depth for depth, worth in level_sums(batch, levels) if worth < bound)
    return down_to(next(low, max(levels)), levels, batch)


def depth_at_ratio(
    batch: Batch, state: State, levels: Levels, costs: Costs, share: Fraction
) -> tuple[Kept, ...]:
    """Levels while the next, worth `share` of the last, is expected to lift the ratio.

    What `DecodingStep.deeper` does, with all that is drafted verified.
    """
    tokens = Fraction(max(sum(map(bool, batch)), 1))
    for depth, worth in level_sums(batch, levels):
        tokens += worth
        here, deeper = (
            costs[sum(level <= below for level in levels)]
            for below in (depth, depth + 1)
        )
        if (tokens + share * worth) * here <= tokens * deeper:
            break
    return down_to(depth, levels, batch)


def level_sums(batch: Batch, levels: Levels) -> list[tuple[int, Fraction]]:
    """Each depth with the sum of its scores over the batch; `levels` of each node."""
    return [
        (depth, sum((s[k] for s in batch if s for k in nodes), start=Fraction(0)))
        for depth in range(1, max(levels) + 1)
        for nodes in [[k for k, level in enumerate(levels) if level == depth]]
    ]


def down_to(depth: int, levels: Levels, batch: Batch) -> tuple[Kept, ...]:
    """All nodes down to a depth; none of a request that drafted none."""
    return tuple(
        frozenset(k for k in range(len(scores)) if levels[k] <= depth)
        for scores in batch
    )


def reaching(bound: Fraction, scores: Scores) -> int:
    """How many scores are at least `bound`."""
    return sum(score >= bound for score in scores)


def gains(scores: Iterable[Fraction]) -> list[Fraction]:
    """Expected tokens by width: the one always emitted, and the scores so far."""
    return list(accumulate(scores, initial=Fraction(1)))


def ratios(scores: Scores, costs: Costs) -> list[Fraction]:
    return [gain / cost for gain, cost in zip(gains(scores), costs, strict=False)]


def surpluses(scores: Scores, costs: Costs, rate: Fraction) -> list[Fraction]:
    """Expected tokens less what the time of the step should earn, by width."""
    pairs = zip(gains(scores), costs, strict=False)
    return [gain - rate * cost for gain, cost in pairs]


def argmax(values: Sequence[Fraction]) -> int:
    """The place of the highest value, the first of equals."""
    return values.index(max(values))


def first_drop(values: Sequence[Fraction]) -> int:
    """The place before the first that is lower than the one before it."""
    drops = (k for k, (here, after) in enumerate(pairwise(values)) if after < here)
    return next(drops, len(values) - 1)
