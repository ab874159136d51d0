"""Recording a reply under an expert budget: what it committed, and how far it was off.

Here trees are verified whole and what they accept is committed, as a server does,
because keys and values of accepted tokens come from budgeted layers and are read ever
after. When a reply is done, the model without a budget reads the same text in one
forward; its distribution at each place is what the budgeted one is compared with.

A *given* text takes the place of what would be decoded: then all budgets see the same
text, and "accepted" means that a draft equals it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.stats import Ints
from runners.protocol import Message
from runners.tree_decoding.always import Always
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.head import causal
from runners.tree_decoding.layout import Hall, Place, make_layout
from runners.tree_decoding.verifier import Verifier


@dataclass(frozen=True)
class Given:
    """A text in the place of the target's own tokens."""

    text: Sequence[int]

    def tokens(self, logits: Tensor, places: Ints) -> list[int]:
        """The text's tokens at places [T]."""
        return [self.text[place] for place in places.tolist()]


@dataclass(frozen=True)
class BudgetedStep:
    """One step; C tokens were committed.

    Attributes:
        position, context: tokens of the reply, and in the cache, before it.
        verified: tokens verified, the root included.
        union: distinct experts, mean over layers.
        logits: what the tokens were chosen by, [C, vocab].
        tokens: which they were.
    """

    position: int
    context: int
    verified: int
    union: float
    logits: Tensor
    tokens: list[int]


class Plain:
    """The target without a budget, reading whole texts."""

    def __init__(self, verifier: Verifier, hall: Hall) -> None:
        self.verifier, self.hall = verifier, hall

    def logits(self, ids: Sequence[int]) -> Tensor:
        """After each token of a text, [T, vocab]."""
        count = len(ids)
        layout = make_layout([Place(0, 0, causal(count), np.arange(count))], self.hall)
        tokens = torch.tensor(ids, device=self.hall.device)
        return self.verifier.verify(tokens, layout, self.verifier.routes(count)).logits


@torch.inference_mode()
def budgeted_reply(engine: Engine, plain: Plain, tokens: int) -> list[Message]:
    """The steps of the one request of an engine, until it has so many tokens."""
    (request,) = engine.requests
    steps = []
    while len(request.reply) <= tokens:
        steps.append(_step(engine))
    expected = plain.logits(request.ids[:-1])
    return [_message(step, expected) for step in steps]


def _step(engine: Engine) -> BudgetedStep:
    (request,) = engine.requests
    position, context = len(request.reply) - 1, request.context
    everything = Always(engine.tree.depth, engine.tree.nodes + 1)
    trees = engine.cut(engine.draft(everything)[0], everything)
    found, routes = engine.verify(trees)
    wanted = engine.wanted(trees, found)
    paths = engine.paths(trees, wanted)
    engine.commit(trees, paths, wanted, found, keep_streams=True)
    rows = [0, *(node + 1 for node in paths[0])]
    unions = [len(layer.unique()) for layer in routes]
    return BudgetedStep(
        position,
        context,
        routes.shape[1],
        sum(unions) / len(unions),
        found.logits[rows],
        request.reply[position + 1 :],
    )


def _message(step: BudgetedStep, expected: Tensor) -> Message:
    """A step as JSON, compared with the unbudgeted logits after each token."""
    count = len(step.tokens)
    own = F.log_softmax(step.logits.double(), dim=1)
    plain = F.log_softmax(expected[step.context : step.context + count].double(), dim=1)
    tokens = torch.tensor(step.tokens, device=own.device)[:, None]
    return {
        "position": step.position,
        "context": step.context,
        "verified": step.verified,
        "union": step.union,
        "committed": count,
        "kl": (plain.exp() * (plain - own)).sum(dim=1).tolist(),
        "agrees": (plain.argmax(dim=1) == own.argmax(dim=1)).tolist(),
        "loss": (-own.gather(1, tokens)).squeeze(1).tolist(),
        "plain_loss": (-plain.gather(1, tokens)).squeeze(1).tolist(),
    }
