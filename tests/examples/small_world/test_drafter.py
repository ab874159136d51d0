"""What the draft head is trained on is what it meets when it drafts."""

import pytest
import torch

from examples.small_world.drafting import draft_loss, unroll
from examples.small_world.engine.drafter import Drafter
from tests.runners.cached_drafting import decode, empty_cache

ROWS, STEPS = 10, 4


@pytest.fixture
def drafter(shape):
    torch.manual_seed(1)
    return Drafter(shape, 64)


@torch.no_grad()
@pytest.mark.parametrize("last", [0, 3, 5])
def test_unrolled_training_equals_cached_drafting(drafter, shape, last):
    """A chain drafted behind row `last`, row by row over a cache, token for token."""
    embedded, feature = torch.randn(2, ROWS, shape.hidden)
    trained = unroll(drafter, embedded[None], feature[None], STEPS)
    cache, known = empty_cache(drafter), last + 1
    causal = torch.ones(known, known, dtype=torch.bool).tril()
    at = torch.arange(known)
    outs = decode(drafter, embedded[:known], feature[:known], at, causal, cache)
    torch.testing.assert_close(outs, trained[0][0, :known])
    out = outs[-1:]
    for step in range(1, STEPS):
        row = last + step
        at = torch.tensor([row])
        out = decode(drafter, embedded[row : row + 1], out, at, None, cache)
        torch.testing.assert_close(out[0], trained[step][0, row])


def test_the_loss_is_least_at_the_targets_own_distribution():
    wanted = torch.randn(5, 20)
    entropy = torch.special.entr(wanted.softmax(-1)).sum(-1)
    torch.testing.assert_close(draft_loss(wanted + 3.0, wanted), entropy)
    assert (draft_loss(torch.randn(5, 20), wanted) > entropy).all()
