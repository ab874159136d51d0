"""What tests of expert budgets share: an engine under a budget, a layer, its input."""

import pytest
import torch

from examples.small_world.engine.engine import Engine
from examples.small_world.engine.verifier import Verifier
from tests.examples.small_world.engine.decoding import HIDDEN, Decoder


@pytest.fixture
def under(checkpoint, tree):
    def decoder(budget):
        return Decoder(lambda slots: Engine(checkpoint, slots, 96, tree, budget))

    return decoder


@pytest.fixture
def layer(checkpoint):
    return Verifier(checkpoint, 1, 1).stack.moe[1]


@pytest.fixture
def x():
    return torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(1))
