"""The further cases of docs/research/data/lossless-further-cases.csv.

They are rules that the four words of a `Combination` do not describe: trees, orders,
online rates, batches, and temperature zero. Under rejection a case is exact when the
nodes of the whole batch can be revealed in an order in which each one's fate is known
before its token.
"""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from inspect import signature
from itertools import accumulate
from random import Random
from typing import NamedTuple

from evict_profile.lossless.rules import Combination
from tests.lossless.further_cuts import (
    TOTALS,
    crossed,
    depth_then_ratio,
    dropped_level,
    lagged_total,
    one_way,
    pooled_ratio,
    stop_by_depth,
    throughput,
)
from tests.lossless.proof.cuts import (
    RATE,
    REACHED,
    Cut,
    by_score,
    depth_at_bound,
    drafted,
    fixed_width,
    lagged,
    online_rate,
    ratio,
    score_threshold,
    stop_at_rate,
    width_from_rate,
)
from tests.lossless.proof.enumeration import Decoding
from tests.lossless.proof.trials import (
    INCREMENTS,
    PAIR,
    draw_bound,
    draw_costs,
    draw_decoding,
    draw_rate,
)
from tests.lossless.proof.world import FORK, TREES, Tree, seeded_world

HORIZON = 3
BUSH = Tree((-1, -1, 0, 1, 3))

CONSTANTS = {
    "levels": lambda levels, rng: levels,
    "width": lambda levels, rng: rng.randint(1, len(levels) - 1),
    "bound": lambda levels, rng: draw_bound(rng),
    "rate": lambda levels, rng: draw_rate(rng),
    "costs": lambda levels, rng: draw_costs(len(levels), rng),
}


class Case(NamedTuple):
    subject: str
    lossless: bool
    draw: object
    alone: bool = False

    def trials(self, count):
        return {seed: self.draw(Random(seed)) for seed in range(count)}


def any_of(rule, *how):
    names = list(signature(rule).parameters)[2:]
    return lambda levels, rng: Cut(
        rule, *how, **{name: CONSTANTS[name](levels, rng) for name in names}
    )


def convex_ratio(levels, rng):
    rises = sorted(rng.choices(INCREMENTS[1:], k=len(levels)))
    costs = tuple(accumulate(rises, initial=Fraction(1)))
    return Cut(ratio, by_score, costs=costs)


def any_width_from_rate(levels, rng):
    costs, bound = draw_costs(len(levels), rng), draw_rate(rng)
    return Cut(width_from_rate, drafted, RATE, costs=costs, bound=bound)


def any_stop_by_depth(levels, rng):
    return Cut(stop_by_depth, rate=2 * draw_bound(rng))


def joint_depth(levels, rng):
    return Cut(depth_at_bound, levels=PAIR.levels, bound=2 * draw_bound(rng))


def on_tree(score, cut, *trees, acceptance="rejection"):
    """Trials of one request with two tokens, for trees too large for three."""

    def draw(rng):
        tree, world = rng.choice(trees), (seeded_world(rng, 2),)
        chosen = cut(tree.levels, rng)
        return Decoding(world, tree, "sampled", acceptance, score, chosen, HORIZON)

    return draw


def by_level(cut, acceptance="rejection"):
    """Trials of one request, on any tree, of a cut that knows the tree's levels."""
    return lambda rng: on_tree(
        "own", cut, rng.choice(ALL_TREES), acceptance=acceptance
    )(rng)


def on_batch(score, cut, acceptance="rejection"):
    """Trials of two requests, each in a world of its own."""

    def draw(rng):
        worlds = (seeded_world(rng, 2), seeded_world(rng, 2))
        chosen = cut(2 * PAIR.levels, rng)
        return Decoding(worlds, PAIR, "sampled", acceptance, score, chosen, HORIZON)

    return draw


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


def at_zero(draw):
    return lambda rng: at_temperature_zero(draw(rng))


def exact(subject, draw, alone=False):
    return Case(subject, True, draw, alone)


def biased(subject, draw, alone=False):
    return Case(subject, False, draw, alone)


WIDE = (FORK, BUSH)
ALL_TREES = (*TREES, BUSH)

# fmt: off
TREE_CASES = (
    exact("tree, the first n nodes in drafting order",
          on_tree("own", any_of(fixed_width, drafted), *WIDE)),
    # The number is fixed, but a node is among the best by its own token.
    biased("tree, the n best nodes by own score",
           on_tree("own", any_of(fixed_width, by_score), *WIDE)),
    # Revealed best first, the next node is known before its token.
    exact("tree, the n best nodes by shifted score",
          on_tree("shifted", any_of(fixed_width, by_score), *WIDE)),
    exact("tree, the n best nodes by max score",
          on_tree("max", any_of(fixed_width, by_score), *WIDE)),
    biased("tree, threshold on own scores",
           on_tree("own", any_of(score_threshold, by_score), *WIDE)),
    exact("tree, threshold on shifted scores",
          on_tree("shifted", any_of(score_threshold, by_score), *WIDE)),
    biased("tree, stop in score order on own scores",
           on_tree("own", any_of(stop_at_rate, by_score), *WIDE)),
    exact("tree, stop in score order on shifted scores",
          on_tree("shifted", any_of(stop_at_rate, by_score), *WIDE)),
    # A level is drafted or not before any of its tokens is drawn.
    exact("tree, depth from own scores of the levels before",
          by_level(any_of(depth_at_bound))),
    biased("tree, the last level dropped by own scores once drafted",
           by_level(any_of(dropped_level))),
    # The depth is known before the tokens; what is then cut is not.
    biased("tree, depth from own scores, then the ratio on own scores",
           by_level(any_of(depth_then_ratio))),
    exact("tree, depth from own scores, then the ratio on own scores, target-only",
          by_level(any_of(depth_then_ratio), "target-only")),
    # With convex costs the global argmax is the first drop, in score order.
    biased("convex costs, ratio on own scores",
           on_tree("own", convex_ratio, *ALL_TREES)),
    exact("convex costs, ratio on shifted scores",
          on_tree("shifted", convex_ratio, *ALL_TREES)),
    exact("convex costs, ratio on max scores",
          on_tree("max", convex_ratio, *ALL_TREES)),
)

STATE_CASES = (
    # The past is known; the scores are of the tokens they decide on.
    biased("online rate on own scores",
           on_tree("own", any_of(online_rate, by_score, RATE), *TREES)),
    exact("online rate on own scores, target-only",
          on_tree("own", any_of(online_rate, by_score, RATE), *TREES,
                  acceptance="target-only")),
    biased("throughput of past and present on own scores",
           on_tree("own", any_of(throughput, by_score, TOTALS), *TREES)),
    exact("throughput of past and present on own scores, target-only",
          on_tree("own", any_of(throughput, by_score, TOTALS), *TREES,
                  acceptance="target-only")),
    exact("a width from the online rate alone",
          on_tree("own", any_width_from_rate, *TREES)),
    exact("a width from the last step's own scores",
          on_tree("own", any_of(lagged, drafted, REACHED), *TREES)),
    # Only the target's one token can be accepted, and only it is left over.
    *(exact(f"temperature 0, {name} drafts, ratio on own scores",
            at_zero(partial(draw_decoding,
                            Combination(drafts, "rejection", "ratio", "own"))))
      for name, drafts in (("sampled", "sampled"), ("top-k", "topk"))),
)

BATCH_CASES = (
    # For either request the other's drafts can be revealed first, but not for both.
    exact("two requests, widths from each other's own scores, each output alone",
          on_batch("own", any_of(crossed)), alone=True),
    biased("two requests, widths from each other's own scores, outputs together",
           on_batch("own", any_of(crossed))),
    # Revealed depth by depth, every width is known before the tokens it cuts.
    exact("two requests, widths from each other's shifted scores, together",
          on_batch("shifted", any_of(crossed))),
    # The request that decides is revealed first.
    exact("two requests, one's width from the other's own scores, together",
          on_batch("own", any_of(one_way))),
    exact("two requests, widths from each other's own scores, target-only, together",
          on_batch("own", any_of(crossed), "target-only")),
    exact("two requests, one argmax over own scores, target-only, together",
          on_batch("own", any_of(pooled_ratio), "target-only")),
    biased("two requests, one argmax over own scores, each output alone",
           on_batch("own", any_of(pooled_ratio)), alone=True),
    exact("two requests, budget from the last step's own scores, together",
          on_batch("own", any_of(lagged_total, None, REACHED))),
    exact("two requests, stop by depth on shifted scores, together",
          on_batch("shifted", any_stop_by_depth)),
    # Revealed level by level, the depth is known before the tokens it adds.
    exact("two requests, one depth from the own scores of both, together",
          on_batch("own", joint_depth)),
)
# fmt: on

CASES = TREE_CASES + STATE_CASES + BATCH_CASES
