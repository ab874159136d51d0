"""Tokens drawn, and paths accepted."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.tree_decoding.accept import accepted_path, sampling

CPU = torch.device("cpu")


def test_gumbel_s_trick_draws_from_the_softmax() -> None:
    places, vocab, temperature = 40_000, 4, 0.7
    logits = torch.tensor([0.3, -1.0, 0.9, 0.0])
    drawn = sampling(temperature, 5, places, vocab, CPU)
    tokens = drawn.tokens(logits.expand(places, vocab), np.arange(places))
    counts = np.bincount(tokens, minlength=vocab)
    expected = (logits / temperature).softmax(dim=0).numpy() * places
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # The 99.9 % quantile with three degrees of freedom; the seed is fixed.
    assert chi_square < 16.3


def test_noise_belongs_to_the_place_and_not_to_the_call() -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    drawn = sampling(1.0, 1, 30, 9, CPU)
    together = drawn.tokens(logits, np.arange(10, 16))
    alone = [drawn.tokens(logits[i : i + 1], np.array([10 + i]))[0] for i in range(6)]
    assert together == alone


def test_temperature_zero_takes_the_best() -> None:
    assert sampling(0.0, 0, 1, 3, CPU).tokens(
        torch.tensor([[0.0, 2.0, 1.0]]), np.zeros(1, dtype=np.int64)
    ) == [1]


@given(
    st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 2)), max_size=9), st.data()
)
def test_the_path_is_the_longest_that_the_target_s_tokens_take(
    drawn: list[tuple[int, int]], data: st.DataObject
) -> None:
    edges: list[tuple[int, int]] = []
    for up, token in drawn:
        edge = (min(up, len(edges) - 1), token)
        if edge not in edges:
            edges.append(edge)
    parent, token = [e[0] for e in edges], [e[1] for e in edges]
    size = len(edges) + 1
    wanted = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    path = accepted_path(token, parent, wanted)
    at = -1
    for node in path:
        assert parent[node] == at and token[node] == wanted[at + 1]
        at = node
    assert (at, wanted[at + 1]) not in edges
