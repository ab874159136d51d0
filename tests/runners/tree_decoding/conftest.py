"""Random weights: what no policy may change must not change there."""

import pytest
import torch

from runners.tree_decoding.engine import Engine
from runners.tree_decoding.tree import TreeShape
from tests.runners.tree_decoding.decoding import Decoder, make_checkpoint, make_target

# Products this small gain nothing from threads, which wait for each other busily.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint():
    return make_checkpoint()


@pytest.fixture(scope="session")
def target():
    return make_target()


@pytest.fixture
def tree():
    return TreeShape(depth=4, topk=3, nodes=14)


@pytest.fixture
def decoder(checkpoint, tree):
    return Decoder(lambda slots: Engine(checkpoint, slots, 96, tree))
