"""Cuts: truncation rules with their constants, as functions of scores and state.

A cut sees the scores of all requests of a batch and a state that it carries from step
to step. Kept nodes are always closed under parents: scores never rise along a path, and
drafting order puts parents first. A request that has all its tokens has left the batch:
it drafts nothing.
"""

from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

Scores = tuple[Fraction, ...]
Kept = frozenset[int]


class Spent(NamedTuple):
    """What a cut may remember of a step: its scores, what it kept, what came out."""

    scores: tuple[Scores, ...]
    kept: tuple[Kept, ...]
    emitted: int


class Memory(NamedTuple):
    """What a cut carries on: its first state, and the state after a step.

    `start` takes the constants of the cut, `after` the state and `Spent` before them.
    """

    start: object = lambda **constants: ()
    after: object = lambda state, spent, **constants: state


NONE = Memory()


class Cut:
    """A rule with its constants.

    A rule with an order counts the nodes of one request to be kept, from the scores in
    that order. One without keeps nodes of the whole batch.
    """

    def __init__(self, rule, order=None, memory=NONE, **constants):
        self.rule = rule
        self.order = order
        self.constants = constants
        self.start = memory.start(**constants)
        self.after = partial(memory.after, **constants)

    def __str__(self):
        values = [v if isinstance(v, tuple) else (v,) for v in self.constants.values()]
        listed = (", ".join(map(str, each)) for each in values)
        constants = ", ".join(map(" ".join, zip(self.constants, listed, strict=True)))
        name = self.rule.__name__.title().replace("_", "")
        return f"{name}: {constants}"

    def keep(self, batch, state):
        if self.order:
            return tuple(self._keep_one(self.order, scores, state) for scores in batch)
        return self.rule(batch, state, **self.constants)

    def _keep_one(self, order, scores, state):
        nodes = order(scores)
        ordered = tuple(scores[node] for node in nodes)
        return frozenset(nodes[: self.rule(ordered, state, **self.constants)])


def drafted(scores):
    """Drafting order."""
    return range(len(scores))


def by_score(scores):
    """The highest scores first; of equals the one drafted first."""
    return sorted(range(len(scores)), key=lambda node: -scores[node])


def _reached_before(state, spent, bound):
    return (Fraction(sum(reaching(bound, scores) for scores in spent.scores)),)


def _rate_so_far(state, spent, costs, **constants):
    time = costs[sum(map(len, spent.kept))]
    return (state[0] + spent.emitted, state[1] + time)


REACHED = Memory(lambda bound: (Fraction(1),), _reached_before)
"""How many nodes reached a bound in the step before."""
RATE = Memory(lambda costs, **constants: (Fraction(1), costs[0]), _rate_so_far)
"""The tokens and the time of all steps before."""


def fixed_width(scores, state, width):
    """The first `width` nodes."""
    return width


def lagged(scores, state, bound):
    """As many nodes as reached `bound` in the step before."""
    return int(state[0])


def score_threshold(scores, state, bound):
    """Every node whose score is at least `bound`, in score order."""
    return sum(score >= bound for score in scores)


def stop_at_rate(scores, state, costs, rate):
    """Nodes until one is worth less than its marginal cost."""
    return first_drop(surpluses(scores, costs, rate))


def stop_at_drop(scores, state, costs):
    """Nodes until benefit over cost first falls."""
    return first_drop(ratios(scores, costs))


def ratio(scores, state, costs):
    """The width of the highest benefit over cost."""
    return argmax(ratios(scores, costs))


def rate(scores, state, costs, rate):
    """The width of the highest benefit less rate times cost."""
    return argmax(surpluses(scores, costs, rate))


def online_rate(scores, state, costs):
    """`rate` at the rate of tokens over time of the steps before."""
    return argmax(surpluses(scores, costs, state[0] / state[1]))


def width_from_rate(scores, state, costs, bound):
    """All nodes while past tokens over past time exceed `bound`, else one."""
    return len(scores) if state[0] / state[1] > bound else 1


def depth_at_bound(batch, state, levels, bound):
    """Levels while the scores of the deepest sum to at least `bound`."""
    low = (depth for depth, worth in level_sums(batch, levels) if worth < bound)
    return down_to(next(low, max(levels)), levels, batch)


def depth_at_ratio(batch, state, levels, costs, share):
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


def level_sums(batch, levels):
    """Each depth with the sum of its scores over the batch; `levels` of each node."""
    return [
        (depth, sum((s[k] for s in batch if s for k in nodes), start=Fraction(0)))
        for depth in range(1, max(levels) + 1)
        for nodes in [[k for k, level in enumerate(levels) if level == depth]]
    ]


def down_to(depth, levels, batch):
    """All nodes down to a depth; none of a request that drafted none."""
    return tuple(
        frozenset(k for k in range(len(scores)) if levels[k] <= depth)
        for scores in batch
    )


def reaching(bound, scores):
    """How many scores are at least `bound`."""
    return sum(score >= bound for score in scores)


def gains(scores):
    """Expected tokens by width: the one always emitted, and the scores so far."""
    return list(accumulate(scores, initial=Fraction(1)))


def ratios(scores, costs):
    return [gain / cost for gain, cost in zip(gains(scores), costs, strict=False)]


def surpluses(scores, costs, rate):
    """Expected tokens less what the time of the step should earn, by width."""
    pairs = zip(gains(scores), costs, strict=False)
    return [gain - rate * cost for gain, cost in pairs]


def argmax(values):
    """The place of the highest value, the first of equals."""
    return values.index(max(values))


def first_drop(values):
    """The place before the first that is lower than the one before it."""
    drops = (k for k, (here, after) in enumerate(pairwise(values)) if after < here)
    return next(drops, len(values) - 1)
