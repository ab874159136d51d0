"""SGLang's own adaptive speculation as a policy, where SGLang is installed."""

import importlib.util

import numpy as np
import pytest

from benchmarks.adaptive_steps import AdaptiveSteps

DEEPEST, CONTEXT = 7, 64.0


def levels(step):
    """How many levels a step drafts."""
    drafted = 0
    while step.deeper():
        parent = np.zeros((1, 1), np.int64) if drafted else None
        step.extend(np.full((1, 1, 1), 0.5), parent)
        drafted += 1
    return drafted


@pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="sglang is not installed here"
)
@pytest.mark.parametrize(("accepts", "drafts"), [(0, 1), (2, 3), (DEEPEST, DEEPEST)])
def test_it_drafts_about_what_is_accepted(accepts, drafts):
    policy = AdaptiveSteps(DEEPEST)
    for _ in range(60):
        drafted = levels(policy.begin(1, CONTEXT, DEEPEST))
        policy.observe(1 + min(accepts, drafted), 1.0)
    assert drafted == drafts
