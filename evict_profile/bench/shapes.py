"""Shapes that the cost of one decoding step takes in real engines, in microseconds.

All start from plain decoding of a 30B MoE model at batch 1. None is fitted to
one machine: they differ in what a truncation rule can get wrong. On a flat cost every
node is free; on an affine one the marginal cost is constant; stairs make it zero
inside a tier of captured graphs; a dip makes a wider tier cheaper; a growing union of
experts makes the tail cheap, so that a rule which stops at the first node that does
not pay stops too early; and a dear draft dilutes whatever verification costs.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.bench.trees import MOST_NODES
from evict_profile.stats import Floats

DECODE_US = 7_000.0
DRAFT_US = 1_500.0
DEAR_DRAFT_US = 8_000.0
TIERS = (1, 2, 4, 8, 16, 32, 61)
STAIRS = (1.0, 1.04, 1.10, 1.22, 1.38, 1.62, 2.1)
"""Cost of each tier over plain decoding; 1.62 at 32 is EVICT's (facts.md)."""
DIP = (1.0, 1.05, 1.15, 1.60, 1.40, 1.90, 2.3)
EXPERTS, TOP_K, EXPERT_US = 128, 8, 75.0
AFFINE_US = 450.0
"""C(32) / C(1) = 3, the dear end of what MoE models show."""


@dataclass(frozen=True)
class CostShape:
    """What verifying costs; `verify_us[t]` for t tokens in all, the root included.

    `verify_us[0]` has no meaning, and is there so that t indexes.
    """

    name: str
    verify_us: Floats
    draft_us: float = DRAFT_US

    @property
    def step_us(self) -> Floats:
        """Draft and verification, float64 [tokens + 1]."""
        return self.verify_us + self.draft_us

    @property
    def decode_us(self) -> float:
        """One step of plain decoding, which drafts nothing."""
        return float(self.verify_us[1])


def cost_shapes() -> tuple[CostShape, ...]:
    """The shapes compared, cheapest tail first."""
    tokens = np.arange(MOST_NODES + 2, dtype=np.float64)
    union = EXPERTS * (1.0 - (1.0 - TOP_K / EXPERTS) ** tokens)
    union_us = DECODE_US + EXPERT_US * (union - TOP_K)
    return (
        CostShape("flat", np.full(len(tokens), DECODE_US)),
        CostShape("stairs", _padded(tokens, STAIRS)),
        CostShape("dip", _padded(tokens, DIP)),
        CostShape("union", union_us),
        CostShape("union, dear draft", union_us, DEAR_DRAFT_US),
        CostShape("affine", DECODE_US + AFFINE_US * (tokens - 1.0)),
    )


def _padded(tokens: Floats, over_decode: tuple[float, ...]) -> Floats:
    """Each number of tokens at the cost of the graph that it is padded to."""
    cost_us: Floats = DECODE_US * np.array(over_decode)[np.searchsorted(TIERS, tokens)]
    return cost_us
