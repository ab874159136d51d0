"""What is claimed of each rule, and random trials that could refute it.

A trial draws a world, a tree and a rule's constants from one seed. A lossless rule must
be exact in every trial; for a biased one the trials look for a large bias, and
`readable` holds one that can be checked by hand. `CASES` are rules that the four words
of a `Combination` do not describe: trees, orders, online rates, batches, temperature
zero, and expert budgets, which change what is verified against.

Under rejection a case is exact when the nodes of the whole batch can be revealed in an
order in which each one's fate is known before its token. A budget is exact only where
it can take no expert from any token: when it has room for all experts, for k a token,
or for those that would be activated and ranks these first; and when a step verifies one
token in all. Otherwise no acceptance mends it: what is emitted is at best a sample of
what the target says within the budget, given all that was verified along with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, product
from random import Random

from evict_profile.lossless.cuts import (
    Best,
    Costs,
    Crossed,
    DepthAtBound,
    DepthAtRatio,
    DepthThenRatio,
    DroppedLevel,
    Fixed,
    Lagged,
    LaggedBudget,
    Levels,
    OneWay,
    OnlineRate,
    PooledRatio,
    Rate,
    Ratio,
    StopAtDrop,
    StopAtPrice,
    StopByDepth,
    StopByScore,
    Threshold,
    Throughput,
    WidthFromRate,
)
from evict_profile.lossless.enumeration import (
    FORK,
    TREES,
    Cut,
    Decoding,
    Tree,
    coin_world,
    seeded_world,
)
from evict_profile.lossless.experts import (
    MODES,
    AsWoken,
    Budget,
    BudgetedDecoding,
    Mass,
    Mode,
    MoeWorld,
    Static,
    seeded_moe_world,
)
from evict_profile.lossless.rules import RULES, Acceptance, Combination, Rule, Score

HORIZON, CASE_HORIZON = 4, 3
VOCABULARIES = (2, 2, 3)
# Flat stairs, high steps and falls: a rule must hold for every cost table.
INCREMENTS = tuple(Fraction(n, 20) for n in (-6, 0, 0, 1, 4, 10, 20, 40))
MIN_COST = Fraction(1, 4)
BUSH = Tree((-1, -1, 0, 1, 3))
PAIR = Tree((-1, 0))

Draw = Callable[[Random], Decoding]
CutDraw = Callable[[Levels, Random], Cut]
BudgetDraw = Callable[[MoeWorld, Random], Budget]


@dataclass(frozen=True)
class Claim:
    """A classification with its reason, and trials that could refute it.

    `alone` compares the law of each request's output; otherwise all are taken
    together.
    """

    subject: str
    lossless: bool
    why: str
    draw: Draw
    readable: Decoding | None = None
    alone: bool = False


def draw_decoding(combination: Combination, rng: Random) -> Decoding:
    """A random world, tree and cut for a combination."""
    tree = rng.choice(TREES)
    return Decoding(
        (seeded_world(rng, rng.choice(VOCABULARIES)),),
        tree,
        combination.drafts,
        combination.acceptance,
        combination.score,
        draw_cut(combination.rule, tree, rng),
        HORIZON,
    )


def draw_cut(rule: Rule, tree: Tree, rng: Random) -> Cut:
    """A rule with random constants, for trees of that shape."""
    size = tree.size
    bound, price = draw_bound(rng), draw_price(rng)
    costs = draw_costs(size, rng)
    cuts: dict[Rule, tuple[Cut, ...]] = {
        "fixed": (
            Fixed(rng.randint(0, size)),
            Lagged(bound),
            WidthFromRate(costs, price),
        ),
        "depth": (
            DepthAtBound(tree.levels, bound),
            DepthAtRatio(tree.levels, costs, bound),
        ),
        "threshold": (Threshold(bound),),
        "stop": (StopAtPrice(costs, price), StopAtDrop(costs)),
        "ratio": (Ratio(costs),),
        "rate": (Rate(costs, price), OnlineRate(costs)),
    }
    return rng.choice(cuts[rule])


def draw_bound(rng: Random) -> Fraction:
    """A threshold strictly between 0 and 1."""
    return Fraction(rng.randint(1, 11), 12)


def draw_price(rng: Random) -> Fraction:
    """Tokens that a unit of time must earn."""
    return Fraction(rng.randint(1, 8), 4)


def draw_costs(size: int, rng: Random) -> Costs:
    """A positive cost for every width from 0 to `size`, of any shape."""
    costs = [Fraction(1)]
    for _ in range(size):
        costs.append(max(costs[-1] + rng.choice(INCREMENTS), MIN_COST))
    return tuple(costs)


def readable(combination: Combination) -> Decoding:
    """The first token of a chain of two in the coin world, with telling constants.

    The cut verifies the first draft when it is a 0, and not when it is a 1. Own scores
    tell at the first node; the others only at the second, so the stair to be climbed
    for the first node has to be too high for that node alone.
    """
    rule, score = combination.rule, combination.score
    early = score == "own" or rule == "stop"
    step = Fraction(3, 2) if early else Fraction(5, 2)
    costs = (Fraction(1), step, step)
    cuts: dict[Rule, Cut] = {
        "fixed": Fixed(2),
        "depth": DepthAtBound((1, 2), Fraction(1, 2)),
        "threshold": Threshold(Fraction(1, 2)),
        "stop": StopAtDrop(costs),
        "ratio": Ratio(costs),
        "rate": Rate(costs, Fraction(1)),
    }
    drafts, acceptance = combination.drafts, combination.acceptance
    world = (coin_world(),)
    return Decoding(world, PAIR, drafts, acceptance, score, cuts[rule], horizon=1)


def on_tree(
    score: Score, cut: CutDraw, *trees: Tree, acceptance: Acceptance = "rejection"
) -> Draw:
    """Trials of one request with two tokens, for trees too large for three."""

    def draw(rng: Random) -> Decoding:
        tree, world = rng.choice(trees), (seeded_world(rng, 2),)
        chosen = cut(tree.levels, rng)
        return Decoding(world, tree, "sampled", acceptance, score, chosen, CASE_HORIZON)

    return draw


def by_level(cut: CutDraw, acceptance: Acceptance = "rejection") -> Draw:
    """Trials of one request, on any tree, of a cut that knows the tree's levels."""

    def draw(rng: Random) -> Decoding:
        tree = rng.choice((*TREES, BUSH))
        return on_tree("own", cut, tree, acceptance=acceptance)(rng)

    return draw


def on_batch(score: Score, cut: CutDraw, acceptance: Acceptance = "rejection") -> Draw:
    """Trials of two requests, each in a world of its own."""

    def draw(rng: Random) -> Decoding:
        worlds = (seeded_world(rng, 2), seeded_world(rng, 2))
        chosen = cut(2 * PAIR.levels, rng)
        return Decoding(
            worlds, PAIR, "sampled", acceptance, score, chosen, CASE_HORIZON
        )

    return draw


def at_zero(combination: Combination) -> Draw:
    """Trials of a combination at temperature zero."""

    def draw(rng: Random) -> Decoding:
        decoding = draw_decoding(combination, rng)
        cold = tuple(world.at_temperature_zero() for world in decoding.worlds)
        return replace(decoding, worlds=cold)

    return draw


def within(
    budget: BudgetDraw,
    cut: Callable[[Tree, Random], Cut] | None = None,
    acceptance: Acceptance = "target-only",
    requests: int = 1,
    cold: bool = False,
) -> Draw:
    """Trials of a budget: sampled drafts under rejection, otherwise top-k ones.

    `cut` is, if not given, at least one node in drafting order.
    """

    def draw(rng: Random) -> Decoding:
        # One model for all requests: the same experts and k behind other prefixes.
        vocabulary = rng.choice(VOCABULARIES) if requests == 1 else 2
        experts, top_k = rng.choice((3, 4)), rng.choice((1, 2))
        worlds = tuple(
            seeded_moe_world(rng, vocabulary, experts, top_k) for _ in range(requests)
        )
        if cold:
            worlds = tuple(world.at_temperature_zero() for world in worlds)
        tree = rng.choice(TREES) if requests == 1 else PAIR
        chosen = cut(tree, rng) if cut else Fixed(rng.randint(1, tree.size))
        return BudgetedDecoding(
            worlds,
            tree,
            "sampled" if acceptance == "rejection" else "topk",
            acceptance,
            "own",
            chosen,
            CASE_HORIZON,
            budget(worlds[0], rng),
        )

    return draw


def _bounded(cut: Callable[[Fraction], Cut]) -> CutDraw:
    return lambda levels, rng: cut(draw_bound(rng))


def _priced(cut: Callable[[Costs], Cut]) -> CutDraw:
    return lambda levels, rng: cut(draw_costs(len(levels), rng))


def _sized(cut: Callable[[int], Cut]) -> CutDraw:
    return lambda levels, rng: cut(rng.randint(1, len(levels) - 1))


def _levelled(cut: Callable[[Levels, Fraction], Cut]) -> CutDraw:
    return lambda levels, rng: cut(levels, draw_bound(rng))


def _costed(cut: Callable[[Costs, Fraction], Cut]) -> CutDraw:
    return lambda levels, rng: cut(draw_costs(len(levels), rng), draw_price(rng))


def _depth_then_ratio(levels: Levels, rng: Random) -> Cut:
    return DepthThenRatio(levels, draw_bound(rng), draw_costs(len(levels), rng))


def _convex_ratio(levels: Levels, rng: Random) -> Cut:
    rises = sorted(rng.choices(INCREMENTS[1:], k=len(levels)))
    return Ratio(tuple(accumulate(rises, initial=Fraction(1))))


def _stop_by_depth(levels: Levels, rng: Random) -> Cut:
    return StopByDepth(2 * draw_bound(rng))


def _joint_depth(levels: Levels, rng: Random) -> Cut:
    return DepthAtBound(PAIR.levels, 2 * draw_bound(rng))


def _any_rule(tree: Tree, rng: Random) -> Cut:
    return draw_cut(rng.choice(RULES), tree, rng)


def _one_node(tree: Tree, rng: Random) -> Cut:
    return Fixed(1)


def _root_alone(tree: Tree, rng: Random) -> Cut:
    return Fixed(0)


def _all_experts(world: MoeWorld, rng: Random) -> Budget:
    return Mass(rng.choice(MODES), world.experts, rng.choice((False, True)))


def _any_size(world: MoeWorld, rng: Random) -> Budget:
    return Mass(rng.choice(MODES), _fewer(world, rng), rng.choice((False, True)))


def _room_for_two(world: MoeWorld, rng: Random) -> Budget:
    size = min(2 * world.top_k, world.experts)
    return Mass(rng.choice(MODES), size, rng.choice((False, True)))


def _mass(mode: Mode, by_path: bool = False, by_run: bool = False) -> BudgetDraw:
    return lambda world, rng: Mass(mode, _fewer(world, rng), by_path, by_run)


def _as_woken(mode: Mode) -> BudgetDraw:
    return lambda world, rng: AsWoken(mode)


def _as_woken_by_run(world: MoeWorld, rng: Random) -> Budget:
    return AsWoken(rng.choice(MODES), by_run=True)


def _static(world: MoeWorld, rng: Random) -> Budget:
    kept = rng.sample(range(world.experts), _fewer(world, rng))
    return Static("substitution", frozenset(kept))


def _fewer(world: MoeWorld, rng: Random) -> int:
    """Fewer experts than there are, but as many as a token runs."""
    return rng.randint(world.top_k, world.experts - 1)


def _exact(subject: str, why: str, draw: Draw, alone: bool = False) -> Claim:
    return Claim(subject, True, why, draw, alone=alone)


def _biased(subject: str, why: str, draw: Draw, alone: bool = False) -> Claim:
    return Claim(subject, False, why, draw, alone=alone)


_ALL_TREES = (*TREES, BUSH)
_OWN_SAMPLE = "Every emitted token is the target's own sample."
_READS_ITSELF = "A node is kept or cut by its own token."
_BEST_FIRST = "Revealed best first, the next node is known before its token."
_FIRST_DROP = "With convex costs the global argmax is the first drop, in score order."
_PAST_STEPS = "The width is decided by past steps."
_ONE_OUTCOME = "Only the target's one token can be accepted, and only it is left over."
_NOTHING_LOST = "No token loses an expert."
_OTHER_MODEL = "A token that loses an expert is verified against another model."
_OUTRANKED = "Experts that no token runs can outrank one that some token runs."
_COMPANY = "What one request's tokens want takes experts from the other's."

# fmt: off
TREE_CASES = (
    _exact("tree, the first n nodes in drafting order",
           "Which nodes are verified is known before any is drawn.",
           on_tree("own", _sized(Fixed), FORK, BUSH)),
    _biased("tree, the n best nodes by own score",
            "The number is fixed, but a node is among the best by its own token.",
            on_tree("own", _sized(Best), FORK, BUSH)),
    _exact("tree, the n best nodes by shifted score", _BEST_FIRST,
           on_tree("shifted", _sized(Best), FORK, BUSH)),
    _exact("tree, the n best nodes by max score", _BEST_FIRST,
           on_tree("max", _sized(Best), FORK, BUSH)),
    _biased("tree, threshold on own scores", _READS_ITSELF,
            on_tree("own", _bounded(Threshold), FORK, BUSH)),
    _exact("tree, threshold on shifted scores",
           "A node's score holds its ancestors' tokens only.",
           on_tree("shifted", _bounded(Threshold), FORK, BUSH)),
    _biased("tree, stop in score order on own scores", _READS_ITSELF,
            on_tree("own", _costed(StopByScore), FORK, BUSH)),
    _exact("tree, stop in score order on shifted scores",
           "Revealed best first, the walk stops before it sees the token.",
           on_tree("shifted", _costed(StopByScore), FORK, BUSH)),
    _exact("tree, depth from own scores of the levels before",
           "A level is drafted or not before any of its tokens is drawn.",
           by_level(_levelled(DepthAtBound))),
    _biased("tree, the last level dropped by own scores once drafted",
            "A level stays or goes by its own tokens.",
            by_level(_levelled(DroppedLevel))),
    _biased("tree, depth from own scores, then the ratio on own scores",
            "The depth is known before the tokens; what is then cut is not.",
            by_level(_depth_then_ratio)),
    _exact("tree, depth from own scores, then the ratio on own scores, target-only",
           _OWN_SAMPLE, by_level(_depth_then_ratio, "target-only")),
    _biased("convex costs, ratio on own scores", _READS_ITSELF,
            on_tree("own", _convex_ratio, *_ALL_TREES)),
    _exact("convex costs, ratio on shifted scores", _FIRST_DROP,
           on_tree("shifted", _convex_ratio, *_ALL_TREES)),
    _exact("convex costs, ratio on max scores", _FIRST_DROP,
           on_tree("max", _convex_ratio, *_ALL_TREES)),
)

STATE_CASES = (
    _biased("online rate on own scores",
            "The rate is of the past; the scores are of the tokens they decide on.",
            on_tree("own", _priced(OnlineRate), *TREES)),
    _exact("online rate on own scores, target-only", _OWN_SAMPLE,
           on_tree("own", _priced(OnlineRate), *TREES, acceptance="target-only")),
    _biased("throughput of past and present on own scores",
            "The past is known; the scores are of the tokens they decide on.",
            on_tree("own", _priced(Throughput), *TREES)),
    _exact("throughput of past and present on own scores, target-only", _OWN_SAMPLE,
           on_tree("own", _priced(Throughput), *TREES, acceptance="target-only")),
    _exact("a width from the online rate alone", _PAST_STEPS,
           on_tree("own", _costed(WidthFromRate), *TREES)),
    _exact("a width from the last step's own scores", _PAST_STEPS,
           on_tree("own", _bounded(Lagged), *TREES)),
    _exact("temperature 0, sampled drafts, ratio on own scores", _ONE_OUTCOME,
           at_zero(Combination("sampled", "rejection", "ratio", "own"))),
    _exact("temperature 0, top-k drafts, ratio on own scores", _ONE_OUTCOME,
           at_zero(Combination("topk", "rejection", "ratio", "own"))),
)

BATCH_CASES = (
    _exact("two requests, widths from each other's own scores, each output alone",
           "For either request the other's drafts can be revealed first.",
           on_batch("own", _bounded(Crossed)), alone=True),
    _biased("two requests, widths from each other's own scores, outputs together",
            "No order reveals each request's drafts before the other's width.",
            on_batch("own", _bounded(Crossed))),
    _exact("two requests, widths from each other's shifted scores, together",
           "Revealed depth by depth, every width is known before the tokens it cuts.",
           on_batch("shifted", _bounded(Crossed))),
    _exact("two requests, one's width from the other's own scores, together",
           "The request that decides is revealed first.",
           on_batch("own", _bounded(OneWay))),
    _exact("two requests, widths from each other's own scores, target-only, together",
           _OWN_SAMPLE, on_batch("own", _bounded(Crossed), "target-only")),
    _exact("two requests, one argmax over own scores, target-only, together",
           _OWN_SAMPLE, on_batch("own", _priced(PooledRatio), "target-only")),
    _biased("two requests, one argmax over own scores, each output alone",
            "A draft is kept or cut by its own token.",
            on_batch("own", _priced(PooledRatio)), alone=True),
    _exact("two requests, budget from the last step's own scores, together",
           "The budget is decided by past steps.",
           on_batch("own", _bounded(LaggedBudget))),
    _exact("two requests, stop by depth on shifted scores, together",
           "Revealed depth by depth, the walk stops before it sees the tokens.",
           on_batch("shifted", _stop_by_depth)),
    _exact("two requests, one depth from the own scores of both, together",
           "Revealed level by level, the depth is known before the tokens it adds.",
           on_batch("own", _joint_depth)),
)

BUDGET_CASES = (
    _exact("budget of all experts, any rule", _NOTHING_LOST,
           within(_all_experts, _any_rule)),
    _exact("budget of all experts, rejection of sampled drafts", _NOTHING_LOST,
           within(_all_experts, acceptance="rejection")),
    _exact("budget of all experts, drafts of two, together", _NOTHING_LOST,
           within(_all_experts, requests=2)),
    _exact("budget of k experts or more, plain decoding of one",
           "The experts that a lone token wants most are those that it runs.",
           within(_any_size, _root_alone)),
    _exact("budget of k experts a token, two tokens",
           "Room for whatever they could run: nothing is ranked.",
           within(_room_for_two, _one_node)),
    _exact("budget of as many experts as would be woken, ranked by those that are run",
           "What no token runs has no mass, and all that is woken comes before it.",
           within(_as_woken_by_run)),
    *(_biased(f"{at}budget below all experts, {mode}{weighted}", _OTHER_MODEL,
              within(_mass(mode, bool(weighted)), cold=bool(at)))
      for at, mode, weighted in product(
          ("", "temperature 0, "), MODES, ("", ", weighted by path"))),
    *(_biased(f"budget below all experts, {mode}, ranked by those that are run",
              _OTHER_MODEL, within(_mass(mode, by_run=True)))
      for mode in MODES),
    *(_biased(f"budget of as many experts as would be woken, {mode}", _OUTRANKED,
              within(_as_woken(mode)))
      for mode in MODES),
    *(_biased(f"budget below all experts, {mode}, rejection of sampled drafts",
              "The tests are made against another model, which depends on the drafts.",
              within(_mass(mode), acceptance="rejection"))
      for mode in MODES),
    _biased("budget of the same experts in each step, substitution", _OTHER_MODEL,
            within(_static)),
    *(_biased(f"{at}budget below all experts, plain decoding of two, each alone",
              _COMPANY, within(_mass("substitution"), _root_alone, requests=2,
                               cold=bool(at)), alone=True)
      for at in ("", "temperature 0, ")),
    _biased("budget below all experts, drafts of two, together", _COMPANY,
            within(_mass("substitution"), requests=2)),
)
# fmt: on

CASES = TREE_CASES + STATE_CASES + BATCH_CASES + BUDGET_CASES
