"""Rules of llama.cpp on chains whose acceptance and probabilities are known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.chains import (
    ChainReplay,
    ChainRule,
    batch_costs,
    best_children,
)
from evict_profile.traces.trace import About, Reply, Step, Trace, make_step

FLAT_US = np.array([0.0, 100.0, 110.0, 120.0, 130.0, 140.0])


def chain(position: int, own: list[float], accepted: int) -> Step:
    """A chain of these probabilities whose first drafts are accepted."""
    parents = np.arange(len(own)) - 1
    taken = np.arange(len(own)) < accepted
    return make_step(position, parents, np.cumprod(own), taken)


def replay(replies: list[list[Step]], draft_us: float = 0.0) -> ChainReplay:
    """Prompts of these steps."""
    made = tuple(
        Reply("w", prompt, 0, 0.0, tuple(steps)) for prompt, steps in enumerate(replies)
    )
    alike_us = np.full_like(FLAT_US, FLAT_US[1])
    return ChainReplay(Trace(About(), made), FLAT_US, lambda n: n * draft_us, alike_us)


def always(accepted: int, own: list[float], tokens: int = 12) -> list[Step]:
    """A reply whose every chain is accepted so far."""
    return [chain(i, own, accepted) for i in range(tokens)]


def test_a_chain_ends_where_its_own_probability_falls() -> None:
    """The token that fell is dropped, and was drafted; one that is too many was not."""
    path = np.cumprod([0.9, 0.8, 0.2, 0.9])
    assert ChainRule(4, 0.5).drafts(path) == (2, 3)
    assert ChainRule(2, 0.5).drafts(path) == (2, 2)
    assert ChainRule(4).drafts(path) == (4, 4)
    assert ChainRule(0, 0.5).drafts(path) == (0, 0)


def test_the_open_change_keeps_the_token_that_fell() -> None:
    """It compares the path's probability with an average cost."""
    path = np.array([0.9, 0.5, 0.4])
    assert ChainRule(3, costs=(1.0, 0.7, 0.6)).drafts(path) == (2, 2)
    assert ChainRule(3, costs=(1.0, 0.3)).drafts(path) == (3, 3)


def test_speed_is_tokens_over_the_price_of_what_was_verified_and_drafted() -> None:
    """Two of two accepted: three tokens a step of 120 us and two drafts of 5 us."""
    made = replay([always(2, [0.9, 0.9])] * 8, draft_us=5.0)
    found = made.speed(ChainRule(2))
    assert found.value == pytest.approx(3 * 100.0 / (120.0 + 10.0))
    assert made.speed(ChainRule(0)).value == pytest.approx(1.0)


def test_speculation_that_never_pays_is_off() -> None:
    """Nothing is accepted: the best rule drafts nothing."""
    made = replay([always(0, [0.9, 0.9])] * 8)
    assert made.rules()["best n-max"] == ChainRule(0)
    assert made.rules()["best n-max with p-min"].n_max == 0
    assert made.speed(made.rules()["default"]).value == pytest.approx(100.0 / 120.0)


def test_who_believes_that_tokens_share_their_experts_drafts_too_many() -> None:
    """One draft in 31 is accepted: free verification earns by it, and 10 % does not."""
    rarely = [*always(0, [0.1] * 4, 30), *always(1, [0.1] * 4, 1)]
    rules = replay([rarely] * 8).rules()
    assert rules["best n-max"].n_max == 0
    assert rules["one token's experts"].n_max >= 1


def test_a_chain_of_another_length_than_the_last_builds_a_graph() -> None:
    """Two drafts and none by turns: each step pays it; at a fixed length the first."""
    steps = [chain(i, [0.9 - 0.6 * (i % 2)] * 2, 0) for i in range(12)]
    made = replace(replay([steps]), new_graph_us=7.0)
    once, always = ChainRule(2), ChainRule(2, 0.5)
    assert made.by_prompt(once).tolist() == [[12, 12 * 120.0 + 7.0]]
    assert made.by_prompt(always).tolist() == [[12, 6 * 120.0 + 6 * 100.0 + 12 * 7.0]]
    assert made.by_prompt(ChainRule(0)).tolist() == [[12, 12 * 100.0]]


def test_p_min_tells_chains_apart() -> None:
    """Sure drafts are right and unsure ones wrong, by turns."""
    sure, unsure = [0.95, 0.95], [0.3, 0.3]
    steps = [
        chain(i, sure if i % 4 < 2 else unsure, 2 * (i % 4 < 2)) for i in range(16)
    ]
    made = replay([steps] * 8)
    rules = made.rules()
    both = rules["best n-max with p-min"]
    assert 0.3 < both.p_min <= 0.95
    assert made.speed(both).value > made.speed(rules["best n-max"]).value


def test_rules_are_tuned_on_other_prompts_than_they_are_scored_on() -> None:
    """Where the scored half accepts nothing, what paid on the other half loses."""
    made = replay([always(2, [0.9, 0.9]), always(0, [0.9, 0.9])] * 4)
    best = made.rules()["best n-max"]
    assert best.n_max == 2
    assert made.speed(best).value < 1.0


def test_the_best_children_are_the_chain() -> None:
    """A tree's second children are none of it, whatever their own children are."""
    step = make_step(
        0, [-1, -1, 1, 0], [0.5, 0.4, 0.39, 0.3], [True, False, False, True]
    )
    assert best_children(step).tolist() == [0, 3]


@given(st.lists(st.floats(1.0, 1e6), min_size=2, max_size=20))
def test_costs_give_the_prices_back(prices: list[float]) -> None:
    """T(m + 1) = costs[m] (m + 1) T(1), and the first is one."""
    verify_us = np.array([0.0, *prices])
    costs = np.array(batch_costs(verify_us))
    assert costs[0] == 1.0
    back = costs * np.arange(1, len(prices) + 1) * prices[0]
    assert np.abs(back - verify_us[1:]).max() <= (0.0006 * len(prices) * prices[0])
