"""What the target accepts of a tree: the path that its own tokens take.

Drafts are kept while they equal the target's own token ("target-only" acceptance). The
noise that draws a token belongs to its position in the reply, so that a sampled reply
is the same text however many nodes were verified: Gumbel's trick, argmax(logits / T +
noise), is a draw from softmax(logits / T).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evict_profile.stats import Ints

Sampler = Callable[[Tensor, Ints], list[int]]
"""The token of each row of logits [T, vocab], at positions [T] of a reply."""


def greedy(logits: Tensor, positions: Ints) -> list[int]:
    """The best tokens."""
    return logits.argmax(dim=-1).tolist()


def make_sampler(
    temperature: float, seed: int, positions: int, vocab: int, device: torch.device
) -> Sampler:
    """The sampler of one reply of at most so many tokens; greedy at temperature 0."""
    if temperature == 0.0:
        return greedy
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(positions, vocab, generator=generator, dtype=torch.float64)
    # rand may give 0, whose noise would be -inf, which is right; never 1.
    noise = (-(-uniform.log()).log()).float().to(device)

    def draw(logits: Tensor, at: Ints) -> list[int]:
        own = noise[torch.from_numpy(at).to(device)]
        return greedy(logits / temperature + own, at)

    return draw


def accepted_path(
    token: Sequence[int], parent: Sequence[int], wanted: Sequence[int]
) -> list[int]:
    """Nodes that the target accepts, from the root's child on, where it wants these
    tokens after the root and after each node. The parent -1 is the root."""
    child = {
        (up, t): node for node, (up, t) in enumerate(zip(parent, token, strict=True))
    }
    path: list[int] = []
    at = -1
    while (at, wanted[at + 1]) in child:
        at = child[at, wanted[at + 1]]
        path.append(at)
    return path
