"""What cannot be served is counted right, and refused by option and limit."""

import pytest

from runners.protocol import Refusal
from runners.tree_decoding import limits
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.limits import cache_bytes, check_options
from runners.tree_decoding.tree import TreeShape
from tests.runners.tree_decoding.decoding import CPU

OPTIONS = {
    "depth": 3,
    "topk": 3,
    "nodes": 10,
    "prompt_tokens": 12,
    "tokens": 6,
    "batches": [1, 4],
    "clock_steps": 5,
}


def test_a_token_takes_what_was_counted(world: Checkpoint, tree: TreeShape) -> None:
    """In the caches of the target and of the draft head, to the byte."""
    engine = Engine(world, 2, 50, tree, CPU)
    taken = engine.verifier.cache.rows.nbytes + engine.head.cache.rows.nbytes
    assert taken == 2 * 50 * cache_bytes(world)


def test_what_fits_is_served(world: Checkpoint) -> None:
    """As many children as there are tokens, and replies as long as may be."""
    check_options({**OPTIONS, "topk": 12, "tokens": 1024}, world, CPU)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tokens": 1025}, "--tokens 1025: .* replies of 1024 at most"),
        ({"topk": 13}, "--topk 13: .* knows 12 tokens; give 12 at most"),
        ({"depth": 10**6}, "--depth 1000000, .* --batch 1 would take .* GB of memory"),
        ({"nodes": 10**12}, "--nodes 1000000000000: timing .* GB of memory"),
        ({"batches": [1, 10**9]}, "--batch 1000000000 would take .* GB are free"),
    ],
)
def test_what_cannot_be_served_is_refused(
    world: Checkpoint, options: dict[str, object], sentence: str
) -> None:
    """The option is named with its limit."""
    with pytest.raises(Refusal, match=sentence):
        check_options({**OPTIONS, **options}, world, CPU)


def test_a_tree_whose_mask_is_too_large_is_refused(
    world: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded tree holds all nodes of all depths, and each sees any other."""
    monkeypatch.setattr(limits, "free_bytes", lambda _: 2e9)
    large = {**OPTIONS, "batches": [], "depth": 300, "topk": 10, "nodes": 100}
    with pytest.raises(Refusal, match="a reply of --tokens 6 would take"):
        check_options(large, world, CPU)
