"""The further cases of docs/explanation/lossless.md.

They are rules that the four words of a `Combination` do not describe: trees, orders,
online rates, batches, and temperature zero. Under rejection a case is exact when the
nodes of the whole batch can be revealed in an order in which each one's fate is known
before its token.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

from evict_profile.lossless.audit import Claim
from evict_profile.lossless.cuts import (
    Cut,
    DepthAtBound,
    FixedWidth,
    Lagged,
    Levels,
    OnlineRate,
    Ratio,
    ScoreThreshold,
    WidthFromRate,
)
from evict_profile.lossless.enumeration import Decoding
from evict_profile.lossless.rules import Combination
from evict_profile.lossless.trials import (
    INCREMENTS,
    PAIR,
    draw_bound,
    draw_costs,
    draw_decoding,
    draw_rate,
)
from evict_profile.lossless.world import FORK, TREES, Tree, seeded_world
from tests.lossless.further_cuts import (
    Best,
    Crossed,
    DepthThenRatio,
    DroppedLevel,
    LaggedTotal,
    OneWay,
    PooledRatio,
    StopByDepth,
    StopByScore,
    Throughput,
)

HORIZON = 3
BUSH = Tree((-1, -1, 0, 1, 3))

Draw = Callable[[Random], Decoding]
CutDraw = Callable[[Levels, Random], Cut]

CONSTANTS: dict[str, Callable[[Levels, Random], Any]] = {
    "levels": lambda levels, rng: levels,
    "width": lambda levels, rng: rng.randint(1, len(levels) - 1),
    "bound": lambda levels, rng: draw_bound(rng),
    "rate": lambda levels, rng: draw_rate(rng),
    "costs": lambda levels, rng: draw_costs(len(levels), rng),
}


def any_of(cut):
    return lambda levels, rng: cut(
        *(CONSTANTS[constant.name](levels, rng) for constant in fields(cut))
    )


def convex_ratio(levels, rng):
    rises = sorted(rng.choices(INCREMENTS[1:], k=len(levels)))
    return Ratio(tuple(accumulate(rises, initial=Fraction(1))))


def width_from_rate(levels, rng):
    return WidthFromRate(draw_costs(len(levels), rng), draw_rate(rng))


def stop_by_depth(levels, rng):
    return StopByDepth(2 * draw_bound(rng))


def joint_depth(levels, rng):
    return DepthAtBound(PAIR.levels, 2 * draw_bound(rng))


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
    return Claim(subject, True, draw, alone=alone)


def biased(subject, draw, alone=False):
    return Claim(subject, False, draw, alone=alone)


WIDE = (FORK, BUSH)
ALL_TREES = (*TREES, BUSH)

# fmt: off
TREE_CASES = (
    exact("tree, the first n nodes in drafting order",
          on_tree("own", any_of(FixedWidth), *WIDE)),
    # The number is fixed, but a node is among the best by its own token.
    biased("tree, the n best nodes by own score",
           on_tree("own", any_of(Best), *WIDE)),
    # Revealed best first, the next node is known before its token.
    exact("tree, the n best nodes by shifted score",
          on_tree("shifted", any_of(Best), *WIDE)),
    exact("tree, the n best nodes by max score",
          on_tree("max", any_of(Best), *WIDE)),
    biased("tree, threshold on own scores",
           on_tree("own", any_of(ScoreThreshold), *WIDE)),
    exact("tree, threshold on shifted scores",
          on_tree("shifted", any_of(ScoreThreshold), *WIDE)),
    biased("tree, stop in score order on own scores",
           on_tree("own", any_of(StopByScore), *WIDE)),
    exact("tree, stop in score order on shifted scores",
          on_tree("shifted", any_of(StopByScore), *WIDE)),
    # A level is drafted or not before any of its tokens is drawn.
    exact("tree, depth from own scores of the levels before",
          by_level(any_of(DepthAtBound))),
    biased("tree, the last level dropped by own scores once drafted",
           by_level(any_of(DroppedLevel))),
    # The depth is known before the tokens; what is then cut is not.
    biased("tree, depth from own scores, then the ratio on own scores",
           by_level(any_of(DepthThenRatio))),
    exact("tree, depth from own scores, then the ratio on own scores, target-only",
          by_level(any_of(DepthThenRatio), "target-only")),
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
           on_tree("own", any_of(OnlineRate), *TREES)),
    exact("online rate on own scores, target-only",
          on_tree("own", any_of(OnlineRate), *TREES, acceptance="target-only")),
    biased("throughput of past and present on own scores",
           on_tree("own", any_of(Throughput), *TREES)),
    exact("throughput of past and present on own scores, target-only",
          on_tree("own", any_of(Throughput), *TREES, acceptance="target-only")),
    exact("a width from the online rate alone",
          on_tree("own", width_from_rate, *TREES)),
    exact("a width from the last step's own scores",
          on_tree("own", any_of(Lagged), *TREES)),
    # Only the target's one token can be accepted, and only it is left over.
    *(exact(f"temperature 0, {name} drafts, ratio on own scores",
            at_zero(partial(draw_decoding,
                            Combination(drafts, "rejection", "ratio", "own"))))
      for name, drafts in (("sampled", "sampled"), ("top-k", "topk"))),
)

BATCH_CASES = (
    # For either request the other's drafts can be revealed first, but not for both.
    exact("two requests, widths from each other's own scores, each output alone",
          on_batch("own", any_of(Crossed)), alone=True),
    biased("two requests, widths from each other's own scores, outputs together",
           on_batch("own", any_of(Crossed))),
    # Revealed depth by depth, every width is known before the tokens it cuts.
    exact("two requests, widths from each other's shifted scores, together",
          on_batch("shifted", any_of(Crossed))),
    # The request that decides is revealed first.
    exact("two requests, one's width from the other's own scores, together",
          on_batch("own", any_of(OneWay))),
    exact("two requests, widths from each other's own scores, target-only, together",
          on_batch("own", any_of(Crossed), "target-only")),
    exact("two requests, one argmax over own scores, target-only, together",
          on_batch("own", any_of(PooledRatio), "target-only")),
    biased("two requests, one argmax over own scores, each output alone",
           on_batch("own", any_of(PooledRatio)), alone=True),
    exact("two requests, budget from the last step's own scores, together",
          on_batch("own", any_of(LaggedTotal))),
    exact("two requests, stop by depth on shifted scores, together",
          on_batch("shifted", stop_by_depth)),
    # Revealed level by level, the depth is known before the tokens it adds.
    exact("two requests, one depth from the own scores of both, together",
          on_batch("own", joint_depth)),
)
# fmt: on

CASES = TREE_CASES + STATE_CASES + BATCH_CASES
