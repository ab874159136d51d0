"""What a checkpoint cannot serve, refused before anything is timed or stored.

The sentences name options as the command `trace` spells them.
"""

from evict_profile.errors import ConfigError
from examples.small_world.engine.checkpoint import Checkpoint
from examples.small_world.engine.tree import TreeShape

MAX_TOKENS = 1024


def check_fits(checkpoint: Checkpoint, tree: TreeShape, tokens: int) -> None:
    """Check that the checkpoint can serve replies of so many tokens."""
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


def reply_room(tree: TreeShape, prompt_tokens: int, tokens: int) -> int:
    """Tokens that a slot caches: the prompt, a reply and the drafted tree."""
    rows = max((tree.nodes + 1) * tree.depth, tree.depth * tree.topk)
    return prompt_tokens + tokens + rows


def clocked_tokens(tree: TreeShape, rounds: int) -> int:
    """Tokens that a request may commit while whole steps are timed at every depth."""
    return (rounds + 1) * sum(1 + level for level in range(tree.depth + 1))
