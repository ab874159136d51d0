"""What the target accepts of a tree: the path that its own tokens take.

The target's token after each node is drawn from the target alone; drafts are kept while
they equal it ("target-only" acceptance). The noise that draws a token belongs to its
position in the reply and not to the step, so that a sampled reply is the same text
however many nodes were verified: Gumbel's trick, argmax(logits / T + noise), is a draw
from softmax(logits / T).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from evict_profile.stats import Ints


class Sampler(Protocol):
    """Chooses the tokens of a reply."""

    def tokens(self, logits: Tensor, positions: Ints) -> list[int]:
        """The token of each row of logits [T, vocab], at positions [T] of the reply."""


class Greedy:
    """Takes the best token."""

    def tokens(self, logits: Tensor, positions: Ints) -> list[int]:
        best: list[int] = logits.argmax(dim=-1).tolist()
        return best


@dataclass(frozen=True)
class GumbelSampler(Greedy):
    """Draws from softmax(logits / temperature); `noise` is [positions, vocab]."""

    temperature: float
    noise: Tensor

    def tokens(self, logits: Tensor, positions: Ints) -> list[int]:
        noise = self.noise[torch.from_numpy(positions).to(logits.device)]
        return super().tokens(logits / self.temperature + noise, positions)


@dataclass(frozen=True)
class TeacherForcing:
    """Takes the tokens of a given text, whatever the target would say."""

    text: Sequence[int]

    def tokens(self, logits: Tensor, positions: Ints) -> list[int]:
        return [self.text[position] for position in positions.tolist()]


def make_sampler(
    temperature: float, seed: int, positions: int, vocab: int, device: torch.device
) -> Sampler:
    """The sampler of one reply of at most so many tokens; greedy at temperature 0."""
    if temperature == 0.0:
        return Greedy()
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(positions, vocab, generator=generator, dtype=torch.float64)
    # rand may give 0, whose noise would be -inf, which is right; never 1.
    noise = -(-uniform.log()).log()
    return GumbelSampler(temperature, noise.float().to(device))


def accepted_path(
    token: Sequence[int], parent: Sequence[int], wanted: Sequence[int]
) -> list[int]:
    """Nodes that the target accepts, from the root's child on.

    Args:
        token, parent: the tree's nodes; a parent is the index of another or -1.
        wanted: the target's token after the root, then after each node.
    """
    child = {
        (up, t): node for node, (up, t) in enumerate(zip(parent, token, strict=True))
    }
    path: list[int] = []
    at = -1
    while (at, wanted[at + 1]) in child:
        at = child[at, wanted[at + 1]]
        path.append(at)
    return path
