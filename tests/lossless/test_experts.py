"""The toy mixture of experts, against the router code of the runtime."""

from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.lossless.enumeration import Row, prefixes
from evict_profile.lossless.experts import (
    MODES,
    Layer,
    Mass,
    Mode,
    Wish,
    moe_world,
    runs,
)
from evict_profile.runtime import budget as runtime

PARTS = 64
"""Probabilities are multiples of 1/64, so that floats sum exactly and ties are many."""


def tenths(*values: int) -> Row:
    """Fractions from whole tenths."""
    return tuple(Fraction(value, 10) for value in values)


LAYER = Layer(
    router=tenths(5, 2, 3),
    rows=(tenths(10, 0), tenths(0, 10), tenths(2, 8)),
    rest=tenths(4, 6),
)


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[Wish], int]:
    """What some tokens ask of one layer, and a budget that it can keep."""
    experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, experts))
    part = st.integers(0, PARTS).map(lambda n: Fraction(n, PARTS))
    row = st.lists(part, min_size=experts, max_size=experts).map(tuple)
    weight = st.sampled_from([Fraction(n, 4) for n in range(5)])
    wish = st.builds(Wish, row, st.just(top_k), weight)
    wishes = draw(st.lists(wish, min_size=1, max_size=6))
    return wishes, draw(st.integers(top_k, experts))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_path", [False, True])
@pytest.mark.parametrize("ranking", runtime.RANKINGS)
@given(layer=layers())
def test_tokens_run_what_the_runtime_lets_them_run(
    layer: tuple[list[Wish], int],
    ranking: runtime.Ranking,
    by_path: bool,
    mode: Mode,
) -> None:
    """The same experts with the same probabilities, wherever these are not zero."""
    wishes, size = layer
    routes = runtime.route(
        torch.tensor([[float(p) for p in wish.router] for wish in wishes]),
        wishes[0].top_k,
        size,
        renormalise=False,
        mode=mode,
        node_weights=torch.tensor([float(w.weight) for w in wishes])
        if by_path
        else None,
        ranking=ranking,
    )
    kept = Mass(mode, size, by_path, by_run=ranking == "top-k").keep(wishes)
    ids, weights = routes.topk_ids.tolist(), routes.topk_weights.tolist()
    for wish, named, given_ in zip(wishes, ids, weights, strict=True):
        ours = runs(wish.router, wish.top_k, kept, mode)
        theirs = {e: p for e, p in zip(named, given_, strict=True) if p}
        assert {e: wish.router[e] for e in ours if wish.router[e]} == theirs
        assert mode == "truncation" or ours == set(named)


def test_the_modes_are_those_of_the_runtime() -> None:
    """Which this package does not import, because that would load torch."""
    assert get_args(Mode) == runtime.MODES


@pytest.mark.parametrize(
    ("kept", "mode", "expected"),
    [
        # The best two: 5/8 of expert 0 and 3/8 of expert 2.
        ({0, 1, 2}, "substitution", (Fraction(56, 80), Fraction(24, 80))),
        # Expert 1 for expert 2: 5/7 and 2/7.
        ({0, 1}, "substitution", (Fraction(5, 7), Fraction(2, 7))),
        # Nobody for expert 2: all of it is expert 0.
        ({0, 1}, "truncation", tenths(10, 0)),
        # Nobody at all: what the rest of the model says.
        ({1}, "truncation", tenths(4, 6)),
    ],
)
def test_what_a_layer_says_within_a_budget(
    kept: set[int], mode: Mode, expected: Row
) -> None:
    """Top 2 of three experts with probabilities .5, .2, .3."""
    assert LAYER.mixed(runs(LAYER.router, 2, frozenset(kept), mode)) == expected


def test_at_temperature_zero_the_mix_is_what_is_maximised() -> None:
    """Without expert 0, (.2, .8) and (0, 1) are mixed, and say 1 for certain."""
    rows = dict.fromkeys(prefixes(2), tenths(5, 5))
    world = moe_world(dict.fromkeys(rows, LAYER), rows, top_k=2)
    cold = world.at_temperature_zero()
    prefix = (0, 1, 0, 1, 1, 0)
    assert world.p(prefix) == (Fraction(7, 10), Fraction(3, 10))
    assert cold.p(prefix) == (1, 0)
    kept = frozenset({1, 2})
    (warm,), (certain,) = (
        [each.within([prefix], kept, "substitution").p(prefix)]
        for each in (world, cold)
    )
    assert warm == (Fraction(3, 25), Fraction(22, 25))
    assert certain == (0, 1)
    assert world.experts == 3
