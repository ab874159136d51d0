"""Replies under expert budgets over one open checkpoint.

Trees are verified whole and what they accept is committed, as a server does: keys and
values of accepted tokens come from budgeted layers and are read ever after. When a
reply is done, the model without a budget reads the same text in one forward, and each
committed token's distribution is compared with that. With teacher forcing all budgets
see the same text, and "accepted" means that a draft equals it.
"""

from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.replay.policies import full_tree
from examples.small_world.engine.accept import greedy, teacher_forcing
from examples.small_world.engine.budget_rivals import make_budget
from examples.small_world.engine.budgets import NONE, ExpertBudget
from examples.small_world.engine.engine import Engine, EngineStep
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.verifier import Verifier
from runners.protocol import Message


@dataclass(frozen=True)
class BudgetedReply:
    """What tells a reply from the others."""

    rule: str
    budget: int
    workload: str
    prompt: int
    given: bool


def budgeted_steps(
    session: TraceSession, reply: BudgetedReply, prompts: int, tokens: int
) -> list[Message]:
    """One of so many prompts, answered with so many tokens under one setting."""
    own, start = session.text_tokens(tokens), session.prompt_tokens
    text = session.held_out.prompts(reply.workload, prompts, own)[reply.prompt]
    budget = None
    if reply.rule != NONE:
        budget = make_budget(reply.rule, reply.budget, session)
    engine = session.engine(1, tokens, budget)
    engine.admit(
        text[:start], teacher_forcing(text[start:]) if reply.given else greedy, 0
    )
    plain = Verifier(session.checkpoint, 1, own)
    steps, speed = session.paced(lambda: budgeted_reply(engine, plain, tokens))
    for step in steps:
        step["routing_us"] *= speed
    return steps


@torch.inference_mode()
def budgeted_reply(engine: Engine, plain: Verifier, tokens: int) -> list[Message]:
    """The steps of the one request of an engine, until it has so many tokens.

    `plain` reads the whole text then, without a budget.
    """
    (request,), budget = engine.requests, engine.budget
    everything = full_tree(engine.tree.nodes, engine.tree.depth)
    steps = []
    while len(request.reply) <= tokens:
        before_us = budget.added_us if isinstance(budget, ExpertBudget) else 0.0
        step = engine.step(everything)
        message = as_message(step, request.prompt)
        if isinstance(budget, ExpertBudget):
            message["routing_us"] = budget.added_us - before_us
        rows = [0, *(node + 1 for node in step.paths[0])]
        steps.append((message, step.verified.logits[rows]))
    expected = plain.read(request.ids[:-1]).logits
    text = torch.tensor(request.ids, device=expected.device)
    return [
        message | compare(logits, expected, text, message["context"])
        for message, logits in steps
    ]


def as_message(step: EngineStep, prompt_tokens: int) -> Message:
    """What a step of one request did, as JSON."""
    (context,), (committed,) = step.contexts, step.committed
    routes = step.verified.routes
    return {
        "position": context - prompt_tokens,
        "context": context,
        "verified": routes.shape[1],
        "union": fmean(len(layer.unique()) for layer in routes),
        "committed": committed,
        "routing_us": 0.0,
    }


def compare(logits: Tensor, expected: Tensor, text: Tensor, context: int) -> Message:
    """Budgeted logits [C, vocab] against those without a budget [text, vocab].

    The C committed tokens stand behind the step's root, which is token `context`.
    """
    tokens = text[context + 1 : context + 1 + len(logits)]
    own = F.log_softmax(logits.double(), dim=1)
    plain = F.log_softmax(expected[context : context + len(own)].double(), dim=1)
    return {
        "kl": (plain.exp() * (plain - own)).sum().item(),
        "agrees": int((plain.argmax(dim=1) == own.argmax(dim=1)).sum()),
        "excess_loss": (plain - own).gather(1, tokens[:, None]).sum().item(),
    }
