"""Further cases: expert budgets, which change what is verified against.

A budget is exact only where it can take no expert from any token: when it has room for
all experts, for k a token, or for those that would be woken and ranks these first; and
when a step verifies one token in all. Otherwise no acceptance mends it.
What is emitted is at best a sample of what the target says within the budget, given
all that was verified along with it, and that is another law.
"""

from collections.abc import Callable
from itertools import product, starmap
from random import Random

from evict_profile.lossless.budgets import (
    AsWoken,
    Budget,
    BudgetedDecoding,
    Mass,
    Static,
)
from evict_profile.lossless.cases import PAIR, Case
from evict_profile.lossless.cuts import Cut, Fixed
from evict_profile.lossless.drafts import TREES, Tree
from evict_profile.lossless.experts import MODES, Mode, MoeWorld, seeded_moe_world
from evict_profile.lossless.law import Decoding
from evict_profile.lossless.rules import RULES, Acceptance
from evict_profile.lossless.trials import VOCABULARIES, draw_cut

HORIZON = 3

BudgetDraw = Callable[[MoeWorld, Random], Budget]
CutDraw = Callable[[Tree, Random], Cut]


def first_nodes(tree: Tree, rng: Random) -> Cut:
    """At least one node, in drafting order."""
    return Fixed(rng.randint(1, tree.size))


def one_node(tree: Tree, rng: Random) -> Cut:
    """Two tokens a step."""
    return Fixed(1)


def root_alone(tree: Tree, rng: Random) -> Cut:
    """Plain decoding."""
    return Fixed(0)


def any_rule(tree: Tree, rng: Random) -> Cut:
    """Any truncation rule, on own scores."""
    return draw_cut(rng.choice(RULES), tree, rng)


def within(
    budget: BudgetDraw,
    cut: CutDraw = first_nodes,
    acceptance: Acceptance = "target-only",
    requests: int = 1,
    cold: bool = False,
) -> Callable[[Random], Decoding]:
    """Trials of a budget: sampled drafts under rejection, otherwise top-k ones."""

    def draw(rng: Random) -> Decoding:
        worlds = _worlds(requests, cold, rng)
        tree = rng.choice(TREES) if requests == 1 else PAIR
        return BudgetedDecoding(
            worlds,
            tree,
            "sampled" if acceptance == "rejection" else "topk",
            acceptance,
            "own",
            cut(tree, rng),
            HORIZON,
            budget(worlds[0], rng),
        )

    return draw


def _worlds(requests: int, cold: bool, rng: Random) -> tuple[MoeWorld, ...]:
    """What one model says in each request: the same experts and k, other prefixes."""
    vocabulary = rng.choice(VOCABULARIES) if requests == 1 else 2
    experts, top_k = rng.choice((3, 4)), rng.choice((1, 2))
    worlds = (
        seeded_moe_world(rng, vocabulary, experts, top_k) for _ in range(requests)
    )
    return tuple(each.at_temperature_zero() if cold else each for each in worlds)


def _all(world: MoeWorld, rng: Random) -> Budget:
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


NOTHING_LOST = "No token loses an expert."
OTHER_MODEL = "A token that loses an expert is verified against another model."
OUTRANKED = "Experts that no token runs can outrank one that some token runs."
COMPANY = "What one request's tokens want takes experts from the other's."


def _below_all(cold: bool, mode: Mode, by_path: bool) -> Case:
    subject = f"budget below all experts, {mode}"
    return Case(
        _at(cold) + subject + (", weighted by path" if by_path else ""),
        False,
        OTHER_MODEL,
        within(_mass(mode, by_path), cold=cold),
    )


def _beside_another(cold: bool) -> Case:
    return Case(
        f"{_at(cold)}budget below all experts, plain decoding of two, each alone",
        False,
        COMPANY,
        within(_mass("substitution"), root_alone, requests=2, cold=cold),
        alone=True,
    )


def _at(cold: bool) -> str:
    return "temperature 0, " if cold else ""


EXACT_CASES = (
    Case(
        "budget of all experts, any rule",
        True,
        NOTHING_LOST,
        within(_all, any_rule),
    ),
    Case(
        "budget of all experts, rejection of sampled drafts",
        True,
        NOTHING_LOST,
        within(_all, acceptance="rejection"),
    ),
    Case(
        "budget of all experts, drafts of two, together",
        True,
        NOTHING_LOST,
        within(_all, requests=2),
    ),
    Case(
        "budget of k experts or more, plain decoding of one",
        True,
        "The experts that a lone token wants most are those that it runs.",
        within(_any_size, root_alone),
    ),
    Case(
        "budget of k experts a token, two tokens",
        True,
        "Room for whatever they could run: nothing is ranked.",
        within(_room_for_two, one_node),
    ),
    Case(
        "budget of as many experts as would be woken, ranked by those that are run",
        True,
        "What no token runs has no mass, and all that is woken comes before it.",
        within(_as_woken_by_run),
    ),
)

BIASED_CASES = (
    *starmap(_below_all, product((False, True), MODES, (False, True))),
    *(
        Case(
            f"budget below all experts, {mode}, ranked by those that are run",
            False,
            OTHER_MODEL,
            within(_mass(mode, by_run=True)),
        )
        for mode in MODES
    ),
    *(
        Case(
            f"budget of as many experts as would be woken, {mode}",
            False,
            OUTRANKED,
            within(_as_woken(mode)),
        )
        for mode in MODES
    ),
    *(
        Case(
            f"budget below all experts, {mode}, rejection of sampled drafts",
            False,
            "The tests are made against another model, which depends on the drafts.",
            within(_mass(mode), acceptance="rejection"),
        )
        for mode in MODES
    ),
    Case(
        "budget of the same experts in each step, substitution",
        False,
        OTHER_MODEL,
        within(_static),
    ),
    *map(_beside_another, (False, True)),
    Case(
        "budget below all experts, drafts of two, together",
        False,
        COMPANY,
        within(_mass("substitution"), requests=2),
    ),
)

BUDGET_CASES = EXACT_CASES + BIASED_CASES
