"""Expert budgets over one open checkpoint: replies under them, learning for them, and
what their routing takes.

Prompts are spaced over the held-out text, twice as many as are asked for: replies are
recorded behind the even ones, and learning is done behind the odd ones.

Here trees are verified whole and what they accept is committed, as a server does,
because keys and values of accepted tokens come from budgeted layers and are read ever
after. When a reply is done, the model without a budget reads the same text in one
forward; its distribution at each token is what the budgeted one is compared with. With
teacher forcing all budgets see the same text, and "accepted" means that a draft equals
it.
"""

from collections.abc import Iterator
from functools import cached_property
from statistics import fmean, median

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.replay.policies import full_tree
from evict_profile.runtime.budget import expert_mass
from runners.protocol import Message
from runners.torch_moe.model import MoeLayer
from runners.tree_decoding.accept import greedy, teacher_forcing
from runners.tree_decoding.budgets import ExpertBudget, make_budget
from runners.tree_decoding.clocks import now
from runners.tree_decoding.engine import BudgetHook, Engine, EngineStep
from runners.tree_decoding.layout import CacheSlot, Layout, make_layout
from runners.tree_decoding.session import TraceSession
from runners.tree_decoding.verifier import Routing, Verifier, own_routing

ROUTING_RUNS = 30


class BudgetSession(TraceSession):
    def record(self, ask: Message) -> Message:
        """One reply, decoded or given, under one budget or under none."""
        return {"steps": self.reply(ask, 2 * ask["prompt"], self.budget(ask))}

    def budget(self, ask: Message) -> ExpertBudget | None:
        """The budget that a request names."""
        return make_budget(ask, self.shape.top_k, self.shape.experts, self.device)

    def reply(
        self, ask: Message, prompt: int, budget: BudgetHook | None
    ) -> list[Message]:
        """The steps of a reply behind one of the prompts, even or odd."""
        # The last tree may overshoot the reply.
        tokens = self.prompt_tokens + ask["tokens"] + self.tree.depth + 2
        texts = self.held_out.prompts(ask["workload"], 2 * ask["prompts"], tokens)
        text = texts[prompt]
        forced = teacher_forcing(text[self.prompt_tokens :])
        engine = self.engine(1, ask["tokens"], budget)
        sampler = forced if ask["given"] else greedy
        engine.admit(text[: self.prompt_tokens], sampler, 0)
        return budgeted_reply(engine, self.verifier(tokens), ask["tokens"])

    def expert_mass(self, ask: Message) -> Message:
        """Share of the router's probability that each expert gets on other text,
        [layers, E]; every verification counts alike."""
        recorder = MassRecorder(self.shape.layers, self.shape.experts, self.device)
        for _ in self.learn({**ask, "given": False}, recorder):
            pass
        shares = recorder.mass / recorder.mass.sum(dim=1, keepdim=True)
        return {"mass": shares.tolist()}

    def budget_kl(self, ask: Message) -> Message:
        """How far a budget puts the output off on other text, nats a token."""
        steps = self.learn({**ask, "given": True}, self.budget(ask))
        return {"kl": fmean(value for step in steps for value in step["kl"])}

    def learn(self, ask: Message, budget: BudgetHook | None) -> Iterator[Message]:
        """Steps behind some of the odd prompts, evenly spread."""
        count = ask["learn_from"]
        for workload in ask["workloads"]:
            for number in range(count):
                prompt = 2 * (number * ask["prompts"] // count) + 1
                yield from self.reply({**ask, "workload": workload}, prompt, budget)

    @torch.inference_mode()
    def clock_routing(self, ask: Message) -> Message:
        """What a budget's routing adds to one verification of a whole tree.

        In place, since a router that runs again and again finds its code and weights
        warm, as none does between the experts of two layers.
        """
        budget = self.budget(ask)
        assert budget is not None
        verifier, ids, layout = self.whole_tree
        alike = torch.ones(len(ids), device=self.device) if budget.exponent else None
        routing = budget.routing(alike)

        def added_us(run: int) -> float:
            timer = RoutingTimer(routing, run)
            verifier.verify(ids, layout, timer)
            return timer.added_us

        runs, speed = self.paced(lambda: [*map(added_us, range(ROUTING_RUNS + 1))])
        return {"routing_us": speed * median(runs[1:])}

    @cached_property
    def whole_tree(self) -> tuple[Verifier, Tensor, Layout]:
        """A forward of as many tokens as a tree has, behind as many as a prompt."""
        tokens = self.tree.nodes + 1
        verifier = self.verifier(self.prompt_tokens + tokens)
        slot = CacheSlot.chain(0, self.prompt_tokens, tokens)
        ids = next(iter(self.held_out.streams.values()))[:tokens].long()
        return verifier, ids.to(self.device), make_layout([slot], verifier.cache)


@torch.inference_mode()
def budgeted_reply(engine: Engine, plain: Verifier, tokens: int) -> list[Message]:
    """The steps of the one request of an engine, until it has so many tokens.

    `plain` reads the whole text then, without a budget.
    """
    (request,) = engine.requests
    everything = full_tree(engine.tree.nodes, engine.tree.depth)
    steps = []
    while len(request.reply) <= tokens:
        step = engine.step(everything)
        rows = [0, *(node + 1 for node in step.paths[0])]
        steps.append((as_message(step, request.prompt), step.verified.logits[rows]))
    expected = plain.read(request.ids[:-1]).logits
    return [
        message | compare(logits, expected, request.ids, message["context"])
        for message, logits in steps
    ]


def as_message(step: EngineStep, prompt_tokens: int) -> Message:
    """What a step of one request did, as JSON."""
    (context,), (committed,), routes = (
        step.contexts,
        step.committed,
        step.verified.routes,
    )
    return {
        "position": context - prompt_tokens,
        "context": context,
        "verified": routes.shape[1],
        "union": fmean(len(layer.unique()) for layer in routes),
        "committed": committed,
    }


def compare(logits: Tensor, expected: Tensor, ids: list[int], context: int) -> Message:
    """Budgeted logits [C, vocab] against those without a budget [text, vocab].

    The C committed tokens stand behind the step's root, `ids[context]`.
    """
    own = F.log_softmax(logits.double(), dim=1)
    plain = F.log_softmax(expected[context : context + len(own)].double(), dim=1)
    committed = ids[context + 1 : context + 1 + len(own)]
    tokens = torch.tensor(committed, device=own.device)[:, None]
    return {
        "kl": (plain.exp() * (plain - own)).sum(dim=1).tolist(),
        "agrees": (plain.argmax(dim=1) == own.argmax(dim=1)).tolist(),
        "loss": (-own.gather(1, tokens)).squeeze(1).tolist(),
        "plain_loss": (-plain.gather(1, tokens)).squeeze(1).tolist(),
    }


class RoutingTimer:
    """Runs a budget's routing beside the model's own, which is obeyed.

    Attributes:
        added_us: what the budget's took more, over all layers so far.
    """

    def __init__(self, routing: Routing, run: int) -> None:
        """In every second layer the budget's is first; in the next run, in others."""
        self.routing, self.run = routing, run
        self.added_us = 0.0

    def __call__(self, index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        routings = [self.routing, own_routing]
        if (index + self.run) % 2:
            routings.reverse()
        us = {}
        for routing in routings:
            begun = now(x.device)
            routing(index, layer, x)
            us[routing] = (now(x.device) - begun).us
        self.added_us += us[self.routing] - us[own_routing]
        return own_routing(index, layer, x)


class MassRecorder:
    """A budget hook that routes as the model does, and adds up what experts are given.

    Attributes:
        mass: by expert, [layers, E], summed over verifications, which count alike.
    """

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        self.mass = torch.zeros(layers, experts, device=device)

    def __call__(self, *_: object) -> Routing:
        return self.route

    def route(self, index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """The model's own, recorded."""
        self.mass[index] += expert_mass(layer.router.scores(x)) / len(x)
        return own_routing(index, layer, x)
