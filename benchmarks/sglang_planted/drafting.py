"""Draft trees of a planted world, chosen as EAGLE chooses them, without an engine.

For what needs trees alone: tests, the check of SGLang's kernels, the cost of a
decision.
"""

import torch
from torch import Tensor

from benchmarks.sglang_planted.world import Stage
from evict_profile.integrations.sglang.tree import Drafted


def draft(stage: Stage, requests: int, width: int) -> Drafted:
    """Trees of `width` tokens, roots included, for the scene that is set."""
    topk = stage.world.topk
    scores, tokens, parents = [], [], []
    likely, guessed = stage.guesses(0, requests)
    frontier = chosen = likely
    for level in range(stage.steps):
        if level == 0:
            hangs_on = torch.arange(-1, topk, device=likely.device).expand(requests, -1)
            stage.keep(hangs_on[:, 1:])
        else:
            likely, guessed = stage.guesses(level, requests)
            path = frontier[:, :, None] * likely.view(requests, topk, topk)
            chosen = path.flatten(1)
            frontier, kept = chosen.topk(topk)
            hangs_on = kept + topk + (level - 1) * topk**2
            stage.keep(kept)
        scores.append(chosen)
        tokens.append(guessed.view(requests, -1))
        parents.append(hangs_on)
    return best(scores, tokens, parents, width, topk)


def best(
    scores: list[Tensor],
    tokens: list[Tensor],
    parents: list[Tensor],
    width: int,
    topk: int,
) -> Drafted:
    """The most probable nodes of all that was drafted."""
    score, token = torch.cat(scores, 1), torch.cat(tokens, 1)
    index = score.topk(width - 1).indices.sort().values
    hangs_on = torch.cat(parents[:-1], 1) if parents[1:] else parents[0][:, :0]
    return Drafted(
        hangs_on, index, token.gather(1, index), score.gather(1, index), topk
    )


def accepted(drafted: Drafted, said: Tensor) -> list[int]:
    """How many drafted tokens each request accepts, walked in plain Python.

    Args:
        said: int [requests, width], what the target says at each node, roots first.
    """
    parents, tokens = drafted.parent.tolist(), drafted.tokens.tolist()
    return [
        _walk(parents[row], tokens[row], said[row].tolist())
        for row in range(len(parents))
    ]


def _walk(parents: list[int], tokens: list[int], said: list[int]) -> int:
    node, length = -1, 0
    while True:
        below = [
            child
            for child, parent in enumerate(parents)
            if parent == node and tokens[child] == said[node + 1]
        ]
        if not below:
            return length
        node, length = below[0], length + 1
