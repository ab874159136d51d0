"""A world of random weights: what no policy may change must not change there."""

import pytest
import torch
from tokenizers import Tokenizer, models

from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.drafter import Drafter
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.target import Target, TargetShape
from runners.tree_decoding.tree import TreeShape
from tests.runners.tree_decoding.decoding import Decoder

CPU = torch.device("cpu")
# Products this small gain nothing from threads, which wait for each other busily.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def world() -> Checkpoint:
    """Three layers of eight experts; a vocabulary so small that drafts are right."""
    shape = TargetShape(
        vocab=12,
        hidden=32,
        layers=3,
        heads=4,
        key_heads=2,
        head_dim=8,
        experts=8,
        top_k=2,
        expert_width=16,
    )
    torch.manual_seed(3)
    target, drafter = Target(shape).eval(), Drafter(shape, 32).eval()
    about = {"model": "random"}
    return Checkpoint(target, drafter, Tokenizer(models.BPE()), about)


@pytest.fixture
def tree() -> TreeShape:
    """Small trees."""
    return TreeShape(depth=4, topk=3, nodes=14)


@pytest.fixture
def decoder(world: Checkpoint, tree: TreeShape) -> Decoder:
    """Decodes batches of that world."""

    def engine(slots: int) -> Engine:
        return Engine(world, slots, 96, tree, CPU)

    return Decoder(world, engine)
