"""What a checkpoint cannot serve, refused before anything is timed or stored.

The sentences name options as the command `trace` spells them.
"""

from collections.abc import Iterator, Sequence

from evict_profile.errors import ConfigError
from evict_profile.runner import CLOCK_STEPS
from examples.small_world.engine.checkpoint import Checkpoint
from examples.small_world.engine.tree import TreeShape
from runners.torch_moe.stack import HEADROOM, free_bytes

MAX_TOKENS = 1024
NODE_BYTES = 2 * (3 * 8 + 4)
"""Of a drafted node's token, parent, depth and path probability; all are copied when a
level is added."""


def check_fits(
    checkpoint: Checkpoint,
    tree: TreeShape,
    prompt_tokens: int,
    tokens: int,
    batches: Sequence[int] = (),
) -> None:
    """Check that the checkpoint and this machine can serve replies of so many tokens,
    and time whole steps of these batches."""
    vocab = checkpoint.shape.vocab
    if tokens > MAX_TOKENS:
        raise ConfigError(
            f"--tokens {tokens}: contexts of a small world are trained to a few "
            f"hundred tokens; ask for replies of {MAX_TOKENS} at most"
        )
    if tree.topk > vocab:
        raise ConfigError(
            f"--topk {tree.topk}: a node has as many children, and the drafter knows "
            f"{vocab} tokens; give {vocab} at most"
        )
    free = free_bytes(checkpoint.stack.head.device) * HEADROOM
    for work, need in _needs(checkpoint, tree, prompt_tokens, tokens, batches):
        if need > free:
            raise ConfigError(
                f"--depth {tree.depth}, --topk {tree.topk}, --nodes {tree.nodes}: "
                f"{work} would take {need / 1e9:.1f} GB of memory, and "
                f"{free / 1e9:.1f} GB are free; ask for less"
            )


def reply_room(tree: TreeShape, prompt_tokens: int, tokens: int) -> int:
    """Tokens that a slot caches: the prompt, a reply and the drafted tree."""
    rows = max((tree.nodes + 1) * tree.depth, tree.depth * tree.topk)
    return prompt_tokens + tokens + rows


def clocked_tokens(tree: TreeShape, rounds: int) -> int:
    """Tokens that a request may commit while whole steps are timed at every depth."""
    return (rounds + 1) * sum(1 + level for level in range(tree.depth + 1))


def cache_bytes(checkpoint: Checkpoint) -> int:
    """What one cached token takes, in the target's layers and in the draft head."""
    shape, drafter = checkpoint.shape, checkpoint.drafter
    target = shape.layers * shape.key_heads * shape.head_dim
    # The head has keys and values of every query head, end to end.
    return 2 * 4 * (target + drafter.out.shape[1])


def _needs(
    checkpoint: Checkpoint,
    tree: TreeShape,
    prompt_tokens: int,
    tokens: int,
    batches: Sequence[int],
) -> Iterator[tuple[str, int]]:
    """Bytes that each kind of work takes at least: caches, drafted nodes, masks."""
    shape = checkpoint.shape
    drafted = tree.topk + (tree.depth - 1) * tree.topk**2
    masks = 1 + shape.heads // shape.key_heads
    for batch in batches:
        room = reply_room(tree, prompt_tokens, clocked_tokens(tree, CLOCK_STEPS))
        slot = room * cache_bytes(checkpoint) + drafted * NODE_BYTES
        yield f"timing whole steps of --batch {batch}", batch * slot
    room = reply_room(tree, prompt_tokens, tokens)
    width = 1 + min(drafted, tree.nodes * tree.depth)
    seen = 4 * masks * width * (prompt_tokens + tokens + width)
    cached = room * cache_bytes(checkpoint)
    yield f"a reply of --tokens {tokens}", cached + drafted * NODE_BYTES + seen
