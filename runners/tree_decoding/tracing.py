"""Recording a reply: the whole tree at every place of it.

A policy that cuts deeper commits less, and its next tree starts where a full tree's
would not. So a tree is drafted and verified behind *every* token, and one token
committed. Whatever a policy does then, the next place is in the trace; and since
nothing was cut, what the target would have accepted is known of every node.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evict_profile.stats import Bools
from runners.tree_decoding.accept import accepted_path
from runners.tree_decoding.always import Always
from runners.tree_decoding.clocks import StepTimes, now
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.tree import Trees


@dataclass(frozen=True)
class TracedStep:
    """One place of a reply.

    Attributes:
        position: tokens that earlier steps committed.
        context: tokens in the target's cache.
        tree: every node that any depth and any width would have verified.
        accepted: bool [M].
        routes: [layers, M + 1, k], the root first.
    """

    position: int
    context: int
    tree: Trees
    accepted: Bools
    routes: Tensor
    times: StepTimes


@torch.inference_mode()
def trace_reply(engine: Engine, tokens: int) -> list[TracedStep]:
    """The steps at each of so many places, for the one request of an engine."""
    return [_trace_step(engine, position) for position in range(tokens)]


def _trace_step(engine: Engine, position: int) -> TracedStep:
    begun = now(engine.device)
    (request,) = engine.requests
    context = request.context
    everything = Always(engine.tree.depth, engine.tree.nodes + 1)
    drafted, levels = engine.draft(everything)
    tree = drafted.any_best(engine.tree.nodes)
    before = now(engine.device)
    found, routes = engine.verify([tree])
    (wanted,) = engine.wanted([tree], found)
    verified = now(engine.device) - before
    accepted = np.zeros(tree.token.shape[1], dtype=np.bool_)
    accepted[accepted_path(tree.token[0].tolist(), tree.parent[0].tolist(), wanted)] = (
        True
    )
    engine.commit([tree], [[]], [wanted], found, keep_streams=True)
    times = StepTimes(tuple(levels), verified, now(engine.device) - begun)
    return TracedStep(position, context, tree, accepted, routes, times)
