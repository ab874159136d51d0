"""Further cases: trees, orders, online rates, batches, temperature zero.

Each is a rule that the four words of a `Combination` do not describe. The theorem
decides them too, and the enumeration checks it. Under rejection a case is exact when
the nodes of the whole batch can be revealed in an order in which each one's fate is
known before its token.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from random import Random

from evict_profile.lossless.batches import (
    Crossed,
    LaggedBudget,
    OneWay,
    PooledRatio,
    StopByDepth,
)
from evict_profile.lossless.claims import Claim
from evict_profile.lossless.cuts import (
    Best,
    Costs,
    Cut,
    Fixed,
    Lagged,
    OnlineRate,
    Ratio,
    StopByScore,
    Threshold,
    Throughput,
    WidthFromRate,
)
from evict_profile.lossless.depths import (
    DepthAtBound,
    DepthThenRatio,
    DroppedLevel,
    Levels,
)
from evict_profile.lossless.drafts import FORK, TREES, Tree
from evict_profile.lossless.law import Decoding
from evict_profile.lossless.rules import Acceptance, Combination, Score
from evict_profile.lossless.trials import (
    INCREMENTS,
    draw_bound,
    draw_costs,
    draw_decoding,
)
from evict_profile.lossless.world import seeded_world

BUSH = Tree((-1, -1, 0, 1, 3))
PAIR = Tree((-1, 0))
CutDraw = Callable[[int, Random], Cut]


@dataclass(frozen=True)
class Case:
    """A rule, what the theorem says of it, and trials that could refute that."""

    subject: str
    lossless: bool
    why: str
    draw: Callable[[Random], Decoding]
    alone: bool = False

    @property
    def claim(self) -> Claim:
        """The case as a claim that `settle` can refute."""
        return Claim(self.subject, self.lossless, self.draw, alone=self.alone)


def on_tree(
    score: Score, cut: CutDraw, *trees: Tree, acceptance: Acceptance = "rejection"
) -> Callable[[Random], Decoding]:
    """Trials of one request with two tokens, for trees too large for three."""

    def draw(rng: Random) -> Decoding:
        tree, world = rng.choice(trees), seeded_world(rng, 2)
        chosen = cut(tree.size, rng)
        return Decoding((world,), tree, "sampled", acceptance, score, chosen, 3)

    return draw


def on_batch(
    score: Score, cut: CutDraw, acceptance: Acceptance = "rejection"
) -> Callable[[Random], Decoding]:
    """Trials of two requests, each in a world of its own."""

    def draw(rng: Random) -> Decoding:
        worlds = (seeded_world(rng, 2), seeded_world(rng, 2))
        chosen = cut(2 * PAIR.size, rng)
        return Decoding(worlds, PAIR, "sampled", acceptance, score, chosen, 3)

    return draw


def _convex_costs(size: int, rng: Random) -> Costs:
    rises = sorted(rng.choices(INCREMENTS[1:], k=size))
    return tuple(accumulate(rises, initial=Fraction(1)))


def _at_zero(combination: Combination) -> Callable[[Random], Decoding]:
    def draw(rng: Random) -> Decoding:
        decoding = draw_decoding(combination, rng)
        cold = tuple(world.at_temperature_zero() for world in decoding.worlds)
        return replace(decoding, worlds=cold)

    return draw


def _bounded(cut: Callable[[Fraction], Cut]) -> CutDraw:
    return lambda size, rng: cut(draw_bound(rng))


def _priced(cut: Callable[[Costs], Cut]) -> CutDraw:
    return lambda size, rng: cut(draw_costs(size, rng))


def _stop_by_score(size: int, rng: Random) -> Cut:
    return StopByScore(draw_costs(size, rng), Fraction(rng.randint(1, 8), 4))


def _best(size: int, rng: Random) -> Cut:
    return Best(rng.randint(1, size - 1))


def _first(size: int, rng: Random) -> Cut:
    return Fixed(rng.randint(1, size - 1))


def _width_from_rate(size: int, rng: Random) -> Cut:
    return WidthFromRate(draw_costs(size, rng), Fraction(rng.randint(1, 8), 4))


def _convex_ratio(size: int, rng: Random) -> Cut:
    return Ratio(_convex_costs(size, rng))


def _stop_by_depth(size: int, rng: Random) -> Cut:
    return StopByDepth(2 * draw_bound(rng))


def on_levels(
    cut: Callable[[Levels, Random], Cut], acceptance: Acceptance = "rejection"
) -> Callable[[Random], Decoding]:
    """Trials of one request, of a cut that knows the levels of its tree."""

    def draw(rng: Random) -> Decoding:
        tree = rng.choice((*TREES, BUSH))

        def chosen(size: int, rng: Random) -> Cut:
            return cut(tree.levels, rng)

        return on_tree("own", chosen, tree, acceptance=acceptance)(rng)

    return draw


def _depth(levels: Levels, rng: Random) -> Cut:
    return DepthAtBound(levels, draw_bound(rng))


def _dropped(levels: Levels, rng: Random) -> Cut:
    return DroppedLevel(levels, draw_bound(rng))


def _depth_then_ratio(levels: Levels, rng: Random) -> Cut:
    return DepthThenRatio(levels, draw_bound(rng), draw_costs(len(levels), rng))


def _joint_depth(size: int, rng: Random) -> Cut:
    return DepthAtBound(PAIR.levels, 2 * draw_bound(rng))


TREE_CASES = (
    Case(
        "tree, the first n nodes in drafting order",
        True,
        "Which nodes are verified is known before any is drawn.",
        on_tree("own", _first, FORK, BUSH),
    ),
    Case(
        "tree, the n best nodes by own score",
        False,
        "The number is fixed, but a node is among the best by its own token.",
        on_tree("own", _best, FORK, BUSH),
    ),
    Case(
        "tree, the n best nodes by shifted score",
        True,
        "Revealed best first, the next node is known before its token.",
        on_tree("shifted", _best, FORK, BUSH),
    ),
    Case(
        "tree, the n best nodes by max score",
        True,
        "Revealed best first, the next node is known before its token.",
        on_tree("max", _best, FORK, BUSH),
    ),
    Case(
        "tree, threshold on own scores",
        False,
        "A node is kept or cut by its own token.",
        on_tree("own", _bounded(Threshold), FORK, BUSH),
    ),
    Case(
        "tree, threshold on shifted scores",
        True,
        "A node's score holds its ancestors' tokens only.",
        on_tree("shifted", _bounded(Threshold), FORK, BUSH),
    ),
    Case(
        "tree, stop in score order on own scores",
        False,
        "A node is kept or cut by its own token.",
        on_tree("own", _stop_by_score, FORK, BUSH),
    ),
    Case(
        "tree, stop in score order on shifted scores",
        True,
        "Revealed best first, the walk stops before it sees the token.",
        on_tree("shifted", _stop_by_score, FORK, BUSH),
    ),
    Case(
        "tree, depth from own scores of the levels before",
        True,
        "A level is drafted or not before any of its tokens is drawn.",
        on_levels(_depth),
    ),
    Case(
        "tree, the last level dropped by own scores once drafted",
        False,
        "A level stays or goes by its own tokens.",
        on_levels(_dropped),
    ),
    Case(
        "tree, depth from own scores, then the ratio on own scores",
        False,
        "The depth is known before the tokens; what is then cut is not.",
        on_levels(_depth_then_ratio),
    ),
    Case(
        "tree, depth from own scores, then the ratio on own scores, target-only",
        True,
        "Every emitted token is the target's own sample.",
        on_levels(_depth_then_ratio, "target-only"),
    ),
    Case(
        "convex costs, ratio on own scores",
        False,
        "A node is kept or cut by its own token.",
        on_tree("own", _convex_ratio, *TREES, BUSH),
    ),
    Case(
        "convex costs, ratio on shifted scores",
        True,
        "With convex costs the global argmax is the first drop, in score order.",
        on_tree("shifted", _convex_ratio, *TREES, BUSH),
    ),
    Case(
        "convex costs, ratio on max scores",
        True,
        "With convex costs the global argmax is the first drop, in score order.",
        on_tree("max", _convex_ratio, *TREES, BUSH),
    ),
)

STATE_CASES = (
    Case(
        "online rate on own scores",
        False,
        "The rate is of the past; the scores are of the tokens they decide on.",
        on_tree("own", _priced(OnlineRate), *TREES),
    ),
    Case(
        "online rate on own scores, target-only",
        True,
        "Every emitted token is the target's own sample.",
        on_tree("own", _priced(OnlineRate), *TREES, acceptance="target-only"),
    ),
    Case(
        "throughput of past and present on own scores",
        False,
        "The past is known; the scores are of the tokens they decide on.",
        on_tree("own", _priced(Throughput), *TREES),
    ),
    Case(
        "throughput of past and present on own scores, target-only",
        True,
        "Every emitted token is the target's own sample.",
        on_tree("own", _priced(Throughput), *TREES, acceptance="target-only"),
    ),
    Case(
        "a width from the online rate alone",
        True,
        "The width is decided by past steps.",
        on_tree("own", _width_from_rate, *TREES),
    ),
    Case(
        "a width from the last step's own scores",
        True,
        "The width is decided by past steps.",
        on_tree("own", _bounded(Lagged), *TREES),
    ),
    Case(
        "temperature 0, sampled drafts, ratio on own scores",
        True,
        "Only the target's one token can be accepted, and only it is left over.",
        _at_zero(Combination("sampled", "rejection", "ratio", "own")),
    ),
    Case(
        "temperature 0, top-k drafts, ratio on own scores",
        True,
        "Only the target's one token can be accepted, and only it is left over.",
        _at_zero(Combination("topk", "rejection", "ratio", "own")),
    ),
)

BATCH_CASES = (
    Case(
        "two requests, widths from each other's own scores, each output alone",
        True,
        "For either request the other's drafts can be revealed first.",
        on_batch("own", _bounded(Crossed)),
        alone=True,
    ),
    Case(
        "two requests, widths from each other's own scores, outputs together",
        False,
        "No order reveals each request's drafts before the other's width.",
        on_batch("own", _bounded(Crossed)),
    ),
    Case(
        "two requests, widths from each other's shifted scores, together",
        True,
        "Revealed depth by depth, every width is known before the tokens it cuts.",
        on_batch("shifted", _bounded(Crossed)),
    ),
    Case(
        "two requests, one's width from the other's own scores, together",
        True,
        "The request that decides is revealed first.",
        on_batch("own", _bounded(OneWay)),
    ),
    Case(
        "two requests, widths from each other's own scores, target-only, together",
        True,
        "Every emitted token is the target's own sample.",
        on_batch("own", _bounded(Crossed), "target-only"),
    ),
    Case(
        "two requests, one argmax over own scores, target-only, together",
        True,
        "Every emitted token is the target's own sample.",
        on_batch("own", _priced(PooledRatio), "target-only"),
    ),
    Case(
        "two requests, one argmax over own scores, each output alone",
        False,
        "A draft is kept or cut by its own token.",
        on_batch("own", _priced(PooledRatio)),
        alone=True,
    ),
    Case(
        "two requests, budget from the last step's own scores, together",
        True,
        "The budget is decided by past steps.",
        on_batch("own", _bounded(LaggedBudget)),
    ),
    Case(
        "two requests, stop by depth on shifted scores, together",
        True,
        "Revealed depth by depth, the walk stops before it sees the tokens.",
        on_batch("shifted", _stop_by_depth),
    ),
    Case(
        "two requests, one depth from the own scores of both, together",
        True,
        "Revealed level by level, the depth is known before the tokens it adds.",
        on_batch("own", _joint_depth),
    ),
)

CASES = TREE_CASES + STATE_CASES + BATCH_CASES
