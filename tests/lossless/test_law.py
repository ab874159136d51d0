"""The enumeration itself: exact where it must be, and able to see a bias."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from evict_profile.lossless import enumeration
from evict_profile.lossless.cases import readable
from evict_profile.lossless.cuts import Cut, Fixed, Threshold
from evict_profile.lossless.enumeration import (
    CHAIN,
    TREES,
    Decoding,
    Tokens,
    Tree,
    World,
    marginal,
    one_hot,
    seeded_world,
    target_law,
    total_variation,
)
from evict_profile.lossless.rules import Combination, Drafts

HALF = Fraction(1, 2)


def decoding(world: World, cut: Cut, tree: Tree = CHAIN) -> Decoding:
    """Three tokens under rejection of sampled drafts, own scores."""
    return Decoding((world,), tree, "sampled", "rejection", "own", cut, 3)


def bias(one: Decoding) -> Fraction:
    """Total variation from the target's law."""
    return total_variation(one.law(), target_law(one.worlds, one.horizon))


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
@pytest.mark.parametrize("width", range(4))
def test_fixed_widths_under_rejection_are_the_target_exactly(
    tree: Tree, width: int
) -> None:
    """The theorem of speculative sampling, and of SpecInfer's siblings."""
    for seed in range(3):
        world = seeded_world(Random(seed), 2 + seed % 2)
        assert decoding(world, Fixed(width), tree).law() == target_law((world,), 3)


def test_a_wrong_residual_is_found_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emitting from p after a rejection, a known bug, shows in the law."""
    honest = decoding(seeded_world(Random(0), 3), Fixed(3))
    assert bias(honest) == 0
    monkeypatch.setattr(enumeration, "residual", lambda p, q: p)
    assert bias(honest) > 0


def test_a_wrong_accept_test_is_found_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting with p instead of p/q, too timid, shows in the law."""
    monkeypatch.setattr(enumeration, "accept_chance", lambda p, q: p)
    assert bias(decoding(seeded_world(Random(0), 3), Fixed(3))) > 0


def test_the_one_step_example() -> None:
    """p fair, q = (.9, .1), drafts below one half dropped: 0 comes out with .55."""
    example = readable(Combination("sampled", "rejection", "threshold", "own"))
    assert example.law() == {((0,),): Fraction(55, 100), ((1,),): Fraction(45, 100)}


def test_top_k_under_rejection_by_hand() -> None:
    """The drafter's best token is accepted with p/q = 5/9, not with p = 1/2."""
    example = readable(Combination("topk", "rejection", "fixed", "own"))
    assert example.law() == {((0,),): Fraction(5, 9), ((1,),): Fraction(4, 9)}


@pytest.mark.parametrize("drafts", ["topk", "sampled"])
def test_rejection_with_a_one_hot_q_is_target_only(drafts: Drafts) -> None:
    """A certain draft is accepted with p; what is left is p without it."""
    world = seeded_world(Random(5), 3)
    certain = World(world.target, {c: one_hot(row) for c, row in world.drafter.items()})
    one = replace(decoding(certain, Fixed(3)), drafts=drafts)
    assert bias(one) == 0


def test_laws_are_probabilities_even_where_biased() -> None:
    """A bias moves probability; it never loses any."""
    biased = decoding(seeded_world(Random(1), 3), Threshold(HALF))
    assert bias(biased) > 0
    assert sum(biased.law().values()) == 1


def test_one_request_of_a_batch_has_its_own_marginal() -> None:
    """Requests that do not look at each other decode as if alone."""
    worlds = (seeded_world(Random(1), 2), seeded_world(Random(2), 2))
    alone = [decoding(world, Threshold(HALF), Tree((-1, 0))) for world in worlds]
    both = replace(alone[0], worlds=worlds).law()
    for request in range(2):
        assert total_variation(marginal(both, request), alone[request].law()) == 0


def simulate(world: World, bound: float, length: int, rng: Random) -> Tokens:
    """Speculative sampling of a chain of three, written anew and in floats."""

    def draw(row: list[float]) -> int:
        return rng.choices(range(len(row)), row)[0]

    out: list[int] = []
    while len(out) < length:
        drafted: list[int] = []
        score, width = 1.0, 0
        for _ in range(3):
            row = [float(x) for x in world.q((*out, *drafted))]
            drafted.append(draw(row))
            score *= row[drafted[-1]]
            width += score >= bound
        for token in drafted[:width]:
            p = [float(x) for x in world.p(tuple(out))]
            q = [float(x) for x in world.q(tuple(out))]
            if rng.random() * q[token] >= p[token]:
                out.append(draw([max(a - b, 0.0) for a, b in zip(p, q, strict=True)]))
                break
            out.append(token)
        else:
            out.append(draw([float(x) for x in world.p(tuple(out))]))
    return tuple(out[:length])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_simulation_agrees_with_the_enumeration(seed: int) -> None:
    """10,000 simulated outputs: every frequency within 5 standard errors."""
    world, draws = seeded_world(Random(seed), 3), 10_000
    law = decoding(world, Threshold(Fraction(41, 100))).law()
    rng = Random(seed)
    counts: dict[Tokens, int] = {}
    for _ in range(draws):
        tokens = simulate(world, 0.41, 3, rng)
        counts[tokens] = counts.get(tokens, 0) + 1
    assert set(counts) <= {tokens for (tokens,), chance in law.items() if chance}
    for (tokens,), chance in law.items():
        error = (float(chance * (1 - chance)) / draws) ** 0.5
        assert abs(counts.get(tokens, 0) / draws - float(chance)) <= 5 * error + 1e-3
