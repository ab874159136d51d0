"""Random trials that could refute what is said of a combination.

A trial draws a world, a tree and a rule's constants from one seed. A lossless rule must
be exact in every trial; for a biased one the trials look for a large bias, and
`readable` is one that can be checked by hand.
"""

from fractions import Fraction

from tests.lossless.proof import cuts
from tests.lossless.proof.cuts import Cut, by_score, drafted
from tests.lossless.proof.enumeration import Decoding
from tests.lossless.proof.world import TREES, Tree, coin_world, seeded_world

HORIZON = 4
VOCABULARIES = (2, 2, 3)
INCREMENTS = tuple(Fraction(n, 20) for n in (-6, 0, 0, 1, 4, 10, 20, 40))
"""Flat stairs, high steps and falls: a rule must hold for every cost table."""
MIN_COST = Fraction(1, 4)
PAIR = Tree((-1, 0))


def draw_decoding(combination, rng):
    tree = rng.choice(TREES)
    world = seeded_world(rng, rng.choice(VOCABULARIES))
    how = combination.drafts, combination.acceptance, combination.score
    return Decoding(
        (world,), tree, *how, draw_cut(combination.rule, tree, rng), HORIZON
    )


def draw_cut(rule, tree, rng):
    bound, rate = draw_bound(rng), draw_rate(rng)
    costs, width = draw_costs(tree.size, rng), rng.randint(0, tree.size)
    levels = tree.levels
    choices = {
        "fixed": (
            Cut(cuts.fixed_width, drafted, width=width),
            Cut(cuts.lagged, drafted, cuts.REACHED, bound=bound),
            Cut(cuts.width_from_rate, drafted, cuts.RATE, costs=costs, bound=rate),
        ),
        "depth": (
            Cut(cuts.depth_at_bound, levels=levels, bound=bound),
            Cut(cuts.depth_at_ratio, levels=levels, costs=costs, share=bound),
        ),
        "threshold": (Cut(cuts.score_threshold, by_score, bound=bound),),
        "stop": (
            Cut(cuts.stop_at_rate, drafted, costs=costs, rate=rate),
            Cut(cuts.stop_at_drop, drafted, costs=costs),
        ),
        "ratio": (Cut(cuts.ratio, by_score, costs=costs),),
        "rate": (
            Cut(cuts.rate, by_score, costs=costs, rate=rate),
            Cut(cuts.online_rate, by_score, cuts.RATE, costs=costs),
        ),
    }
    return rng.choice(choices[rule])


def draw_bound(rng):
    """A threshold strictly between 0 and 1."""
    return Fraction(rng.randint(1, 11), 12)


def draw_rate(rng):
    """Tokens that a unit of time must earn."""
    return Fraction(rng.randint(1, 8), 4)


def draw_costs(size, rng):
    """A positive cost for every width from 0 to `size`, of any shape."""
    costs = [Fraction(1)]
    for _ in range(size):
        costs.append(max(costs[-1] + rng.choice(INCREMENTS), MIN_COST))
    return tuple(costs)


def readable(combination):
    """The first token of a chain of two in the coin world.

    The cut verifies the first draft when it is a 0, and not when it is a 1. Own scores
    differ at the first node; the others only at the second, so the stair to be climbed
    for the first node has to be too high for that node alone.
    """
    rule, score = combination.rule, combination.score
    early = score == "own" or rule == "stop"
    step = Fraction(3, 2) if early else Fraction(5, 2)
    costs = (Fraction(1), step, step)
    choices = {
        "fixed": Cut(cuts.fixed_width, drafted, width=2),
        "depth": Cut(cuts.depth_at_bound, levels=(1, 2), bound=Fraction(1, 2)),
        "threshold": Cut(cuts.score_threshold, by_score, bound=Fraction(1, 2)),
        "stop": Cut(cuts.stop_at_drop, drafted, costs=costs),
        "ratio": Cut(cuts.ratio, by_score, costs=costs),
        "rate": Cut(cuts.rate, by_score, costs=costs, rate=Fraction(1)),
    }
    drafts, acceptance = combination.drafts, combination.acceptance
    world = (coin_world(),)
    return Decoding(world, PAIR, drafts, acceptance, score, choices[rule], horizon=1)
