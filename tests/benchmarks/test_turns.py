"""Turns are shared out fairly, and everything that was decoded is kept."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.turns import (
    COLUMNS,
    Contender,
    Measured,
    Text,
    interval,
    resampled,
    serve_all,
    turns_of,
    union_of,
)
from evict_profile.replay.policies import Fixed, plain_decoding
from evict_profile.traces import Trace
from runners.tree_decoding.budgets import Budget
from runners.tree_decoding.session import TraceSession

TOKENS = 6


def measured(tokens: list[float], us: list[float], turn: int) -> Measured:
    """Steps of which only tokens and time are known."""
    known = {"tokens": tokens, "us": us}
    steps = [[known.get(n, us)[i] for n in COLUMNS] for i in range(len(us))]
    return Measured(steps, turn, 10.0)


@given(st.dictionaries(st.text(), st.integers(1, 1000), min_size=1))
def test_turns_are_in_proportion(steps: dict[str, int]) -> None:
    """So all have about as many turns, the one of fewest steps two steps each."""
    turns = turns_of(steps)
    fewest = min(steps.values())
    assert min(turns.values()) == 2
    assert all(abs(turns[n] - 2 * steps[n] / fewest) <= 0.5 for n in steps)


def test_speed_is_tokens_over_time() -> None:
    """Of all steps together."""
    found = measured([1, 3, 2], [10.0, 20.0, 30.0], 2)
    assert found.tokens_per_s("us")[0] == 1e6 * 6 / 60
    assert found.mean("us") == 20.0
    assert found.decision_us == pytest.approx(10 / 3)


def test_steps_of_a_turn_are_drawn_together() -> None:
    """One slow step in each turn makes no resample slower than another."""
    found = measured([1, 1] * 4, [1.0, 9.0] * 4, 2).tokens_per_s("us")
    assert np.ptp(found) == pytest.approx(0.0)


@given(st.floats(0.1, 10.0), st.integers(1, 30))
def test_what_never_varies_has_no_interval(ratio: float, count: int) -> None:
    """A ratio that all entries share."""
    below = np.arange(1.0, count + 1.0)
    found = interval(resampled(ratio * below, below, seed=0))
    assert found.low == found.value == found.high
    assert math.isclose(found.value, ratio, abs_tol=1e-4)


def test_unions_are_distinct_experts() -> None:
    """Over tokens, mean over layers."""
    routes = torch.tensor([[[0, 1], [1, 2]], [[0, 1], [1, 0]]])
    assert union_of(routes) == 2.5


def test_all_decode_every_reply(
    random_session: TraceSession, short_trace: Trace
) -> None:
    """Under any policy and budget, the texts hold as many tokens as were counted."""
    budget = Budget((3, 3, 3))
    contenders = {
        "plain": Contender(plain_decoding, 18),
        "tree": Contender(lambda: Fixed("tree", 2, 5), 9),
        "budget": Contender(lambda: Fixed("tree", 2, 5), 9, budget),
    }
    found = serve_all(random_session, short_trace, contenders, 3, 1)
    for each in found.values():
        assert each.columns["tokens"].sum() == 3 * TOKENS
        assert sorted(text.job for text in each.texts) == [0, 1, 2]
        assert all(decoded(text) >= TOKENS for text in each.texts)
    assert found["plain"].columns["union"].max() == 2.0
    assert found["budget"].columns["union"].max() <= 3.0
    assert found["tree"].columns["union"].max() > 3.0


def test_a_batch_keeps_texts_that_were_cut_short(
    random_session: TraceSession, short_trace: Trace
) -> None:
    """Seats are always taken, so the last texts have no end."""
    contenders = {"plain": Contender(plain_decoding, 9)}
    found = serve_all(random_session, short_trace, contenders, 3, 2)["plain"]
    assert len(found.columns["us"]) == 9
    assert sum(min(decoded(text), TOKENS) for text in found.texts) == 18


def decoded(text: Text) -> int:
    """Tokens that steps committed; the prompt's own forward gave one."""
    return len(text.ids) - text.prompt - 1
