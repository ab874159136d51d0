"""Rules of the runtime that the four words of a `Combination` do not describe.

docs/research/data/lossless-further-cases.csv has a line for each case. Under rejection
a case is exact if the nodes of the whole batch can be revealed in an order in which
each one's fate is known before its token.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from tests.lossless.proof import cuts
from tests.lossless.proof.cuts import Cut, Memory, argmax, by_score, gains, ratio
from tests.lossless.proof.enumeration import Decoding
from tests.lossless.proof.trials import INCREMENTS, PAIR, draw_bound, draw_costs
from tests.lossless.proof.world import TREES, Tree, seeded_world

HORIZON = 3
WIDE = (*TREES, Tree((-1, -1, 0, 1, 3)))


def all_so_far(state, spent, costs):
    pairs = zip(spent.scores, spent.kept, strict=True)
    claimed = [scores[k] for scores, kept in pairs for k in kept]
    step = spent.emitted, costs[len(claimed)], spent.emitted - 1, sum(claimed)
    return tuple(past + new for past, new in zip(state, step, strict=True))


TOTALS = Memory(lambda costs: (Fraction(0),) * 4, all_so_far)


def throughput(scores, state, costs):
    """The width of the highest throughput, past and present.

    Scores count as often as past ones came true: what `runtime.history` learns.
    """
    tokens, time, accepted, claimed = state
    trust = (1 + accepted) / (1 + claimed)
    pairs = zip(gains(trust * score for score in scores), costs, strict=False)
    return argmax([(tokens + gain) / (time + cost) for gain, cost in pairs])


def depth_then_ratio(batch, state, levels, bound, costs):
    """A depth, and of the nodes down to there those of the highest ratio."""
    kept = []
    drafted = cuts.depth_at_bound(batch, state, levels, bound)
    for nodes, scores in zip(map(sorted, drafted), batch, strict=True):
        own = tuple(scores[k] for k in nodes)
        (chosen,) = Cut(ratio, by_score, costs=costs).keep((own,), state)
        kept.append(frozenset(nodes[k] for k in chosen))
    return tuple(kept)


def crossed(batch, state, bound):
    """Each of two requests verifies as many nodes as the other's reach `bound`."""
    one, other = batch
    if not one or not other:
        return frozenset(range(len(one))), frozenset(range(len(other)))
    width, other_width = (cuts.reaching(bound, scores) for scores in (other, one))
    return frozenset(range(width)), frozenset(range(other_width))


def pooled_ratio(batch, state, costs):
    """One global argmax of expected tokens over cost, on the scores of all."""
    nodes = sorted(
        (-score, node, request)
        for request, scores in enumerate(batch)
        for node, score in enumerate(scores)
    )
    certain = sum(1 for scores in batch if scores)
    tokens = [certain - 1 + gain for gain in gains(-node[0] for node in nodes)]
    pairs = zip(tokens, costs, strict=False)
    kept = nodes[: argmax([gain / cost for gain, cost in pairs])]
    requests = range(len(batch))
    return tuple(frozenset(k for _, k, owner in kept if owner == r) for r in requests)


def convex_ratio(tree, rng):
    rises = sorted(rng.choices(INCREMENTS[1:], k=tree.size))
    costs = tuple(accumulate(rises, initial=Fraction(1)))
    return Cut(ratio, by_score, costs=costs)


def any_throughput(tree, rng):
    return Cut(throughput, by_score, TOTALS, costs=draw_costs(tree.size, rng))


def any_depth_then_ratio(tree, rng):
    bound, costs = draw_bound(rng), draw_costs(tree.size, rng)
    return Cut(depth_then_ratio, levels=tree.levels, bound=bound, costs=costs)


def any_crossed(tree, rng):
    return Cut(crossed, bound=draw_bound(rng))


def any_pooled_ratio(tree, rng):
    return Cut(pooled_ratio, costs=draw_costs(2 * tree.size, rng))


def joint_depth(tree, rng):
    return Cut(cuts.depth_at_bound, levels=tree.levels, bound=2 * draw_bound(rng))


class Case(NamedTuple):
    """`alone` compares each request's output, else those of a batch together."""

    subject: str
    lossless: bool
    cut: object
    trees: tuple[Tree, ...] = (PAIR,)
    acceptance: str = "rejection"
    score: str = "own"
    requests: int = 2
    alone: bool = False

    def draw(self, rng):
        tree = rng.choice(self.trees) if self.trees[1:] else self.trees[0]
        worlds = tuple(seeded_world(rng, 2) for _ in range(self.requests))
        how = "sampled", self.acceptance, self.score, self.cut(tree, rng)
        return Decoding(worlds, tree, *how, HORIZON)


def one_hot(row):
    """All probability on the most probable token, the first of equals."""
    top = row.index(max(row))
    return tuple(Fraction(token == top) for token in range(len(row)))


def at_temperature_zero(decoding):
    """The same, with the most probable token of each target certain."""
    worlds = (
        replace(world, target={c: one_hot(row) for c, row in world.target.items()})
        for world in decoding.worlds
    )
    return replace(decoding, worlds=tuple(worlds))


def one(subject, lossless, cut, trees, acceptance="rejection", score="own"):
    return Case(subject, lossless, cut, trees, acceptance, score, requests=1)


THEN_RATIO = "tree, depth from own scores, then the ratio on own scores"
CONVEX = "convex costs, ratio on"
PAST = "throughput of past and present on own scores"
ARGMAX = "two requests, one argmax over own scores"
CROSSED = "two requests, widths from each other's own scores"
DEPTH = "two requests, one depth from the own scores of both"
TARGET = "target-only"
CASES = (
    # The depth is known before the tokens; what is then cut is not.
    one(THEN_RATIO, False, any_depth_then_ratio, WIDE),
    one(f"{THEN_RATIO}, {TARGET}", True, any_depth_then_ratio, WIDE, TARGET),
    # With convex costs the global argmax is the first drop, in score order.
    one(f"{CONVEX} own scores", False, convex_ratio, WIDE),
    one(f"{CONVEX} shifted scores", True, convex_ratio, WIDE, score="shifted"),
    # The past is known; the scores are of the tokens they decide on.
    one(PAST, False, any_throughput, TREES),
    one(f"{PAST}, {TARGET}", True, any_throughput, TREES, TARGET),
    # For either request the other's drafts can be revealed first, but not for both.
    Case(f"{CROSSED}, each output alone", True, any_crossed, alone=True),
    Case(f"{CROSSED}, outputs together", False, any_crossed),
    Case(f"{ARGMAX}, {TARGET}, together", True, any_pooled_ratio, (PAIR,), TARGET),
    Case(f"{ARGMAX}, each output alone", False, any_pooled_ratio, alone=True),
    # Revealed level by level, the depth is known before the tokens it adds.
    Case(f"{DEPTH}, together", True, joint_depth),
)
