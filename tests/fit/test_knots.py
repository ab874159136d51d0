"""Knots are placed where cost bends, and nowhere else."""

import numpy as np

from evict_profile.fit.knots import choose_terms
from evict_profile.pricing import Term

TOKENS = np.tile(np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]), 6)
X = {"one": np.ones(len(TOKENS)), "tokens": TOKENS}
BASE = (Term("one"), Term("tokens"))
ERROR = np.full(len(TOKENS), 0.005)
NOISE = 1.0 + 0.005 * np.random.default_rng(0).standard_normal(len(TOKENS))


def test_a_bend_gets_a_knot() -> None:
    """Cost that is flat up to 8 tokens and rises after is split at 8."""
    latency = (100.0 + 10.0 * np.maximum(TOKENS - 8.0, 0.0)) * NOISE
    terms = choose_terms(BASE, X, latency, ERROR)
    assert Term("tokens", 0.0, 8.0) in terms


def test_a_line_gets_none() -> None:
    """Noise alone buys no knot."""
    latency = (100.0 + 10.0 * TOKENS) * NOISE
    assert choose_terms(BASE, X, latency, ERROR) == BASE
