"""The trainable target computes what the runner's layers compute."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from examples.small_world.engine.checkpoint import load_stack, stack_shape
from examples.small_world.engine.drafter import TargetShape
from examples.small_world.target import Target, balance_loss
from runners.torch_moe.attention import make_metadata
from tests.examples.small_world.engine.decoding import named_weights

CPU = torch.device("cpu")


@pytest.fixture
def shape():
    return TargetShape(512, 32, 2, 2, 1, 16, experts=4, top_k=2, expert_width=16)


@torch.no_grad()
def test_logits_and_routes_equal_the_runners(shape):
    """On a causal chain in single precision, but for rounding."""
    torch.manual_seed(0)
    target, tokens = Target(shape), 24
    ids = torch.randint(shape.vocab, (tokens,))
    meta = make_metadata(stack_shape(shape), 1, tokens, 0, CPU)
    meta.set_tree(torch.ones(tokens, tokens).tril().bool())
    stack = load_stack(shape, named_weights(target), slots=(1, tokens))
    routes = torch.zeros(shape.layers, tokens, shape.top_k, dtype=torch.int64)
    x = stack.run_layers(F.embedding(ids, stack.embedding), meta, routes, False)
    theirs = F.linear(F.rms_norm(x, x.shape[-1:]), stack.head)
    ours = target(ids[None])
    torch.testing.assert_close(ours.logits[0], theirs, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(ours.features[-1][0], x, atol=2e-5, rtol=1e-4)
    assert torch.equal(ours.routes, routes)


def test_every_weight_learns(shape):
    target = Target(shape)
    found = target(torch.randint(shape.vocab, (2, 32)))
    (found.logits.square().mean() + found.balance).backward()
    for name, parameter in target.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_balance_is_one_when_even_and_experts_over_k_when_collapsed():
    experts, top_k, tokens = 8, 2, 16
    even = (torch.arange(tokens * top_k) % experts).view(1, tokens, top_k)
    flat = [torch.full((tokens, experts), 1 / experts)]
    assert balance_loss(even, flat).item() == 1.0
    sharp = torch.zeros(tokens, experts)
    sharp[:, :top_k] = 1 / top_k
    collapsed = torch.arange(top_k).expand(1, tokens, top_k)
    assert balance_loss(collapsed, [sharp]).item() == experts / top_k
