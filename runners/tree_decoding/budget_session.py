"""Expert budgets over one open world: replies under them, learning for them, and what
their routing takes.

Prompts are spaced over the held-out text, twice as many as are asked for: replies are
recorded behind the even ones, and learning is done behind the odd ones.

Here trees are verified whole and what they accept is committed, as a server does,
because keys and values of accepted tokens come from budgeted layers and are read ever
after. When a reply is done, the model without a budget reads the same text in one
forward; its distribution at each place is what the budgeted one is compared with. A
*given* text takes the place of what would be decoded: then all budgets see the same
text, and "accepted" means that a draft equals it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean, median

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.runtime.budget import expert_mass
from evict_profile.stats import Ints
from runners.protocol import Message
from runners.torch_moe.model import MoeLayer
from runners.tree_decoding.accept import sampling
from runners.tree_decoding.budgets import Budget, make_budget
from runners.tree_decoding.clocks import now
from runners.tree_decoding.engine import BudgetHook, Engine
from runners.tree_decoding.layout import CacheSlot, Layout, causal, make_layout
from runners.tree_decoding.limits import check_tokens
from runners.tree_decoding.policy import Always
from runners.tree_decoding.session import TraceSession
from runners.tree_decoding.verifier import Routing, Verifier

ROUTING_RUNS = 30


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

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier

    def logits(self, ids: Sequence[int]) -> Tensor:
        """After each token of a text, [T, vocab]."""
        count = len(ids)
        slot = CacheSlot(0, 0, causal(count), np.arange(count))
        layout = make_layout([slot], self.verifier.cache)
        tokens = torch.tensor(ids, device=self.verifier.device)
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


class BudgetSession:
    """Replies under budgets, over the world of a trace session."""

    def __init__(self, tracing: TraceSession) -> None:
        self.tracing = tracing
        self.shape = tracing.world.target.shape
        self.plain = lru_cache(1)(self._plain)

    def record(self, ask: Message) -> Message:
        """One reply, decoded or given, under one budget or under none."""
        return {"steps": self.reply(ask, 2 * ask["prompt"], self.budget(ask))}

    def budget(self, ask: Message) -> Budget | None:
        """The budget that a request names.

        Raises:
            Refusal: no layer could keep it.
        """
        shape = self.shape
        return make_budget(ask, shape.top_k, shape.experts, self.tracing.device)

    def reply(
        self, ask: Message, place: int, budget: BudgetHook | None
    ) -> list[Message]:
        """The steps of a reply behind the prompt at one of the places.

        Raises:
            Refusal: a reply too long, or more prompts than there is text for.
        """
        check_tokens(ask["tokens"])
        prompt, text = self._text(ask, place)
        greedy = sampling(0.0, 0, 0, self.tracing.vocab, self.tracing.device)
        engine = self.tracing.engine(1, ask["tokens"], budget)
        engine.admit(prompt, Given(text) if ask["given"] else greedy, 0)
        return budgeted_reply(engine, self.plain(ask["tokens"]), ask["tokens"])

    def expert_mass(self, ask: Message) -> Message:
        """Share of the router's probability that each expert gets on other text,
        [layers, E]; every verification counts alike."""
        watch = Watch(self.shape.layers, self.shape.experts, self.tracing.device)
        for _ in self._learnt({**ask, "given": False}, watch):
            pass
        return {"mass": (watch.mass / watch.mass.sum(dim=1, keepdim=True)).tolist()}

    def budget_kl(self, ask: Message) -> Message:
        """How far a budget puts the output off on other text, nats a token."""
        steps = self._learnt({**ask, "given": True}, self.budget(ask))
        return {"kl": fmean(value for step in steps for value in step["kl"])}

    @torch.inference_mode()
    def clock_routing(self, ask: Message) -> Message:
        """What a budget's routing adds to one verification of a whole tree.

        In place, since a router that runs again and again finds its code and weights
        warm, as none does between the experts of two layers.
        """
        budget = self.budget(ask)
        assert budget is not None
        tracing, tokens = self.tracing, self.tracing.tree.nodes + 1
        alike = torch.ones(tokens, device=tracing.device)
        routing = budget.routing(alike if budget.exponent else None)
        verifier, ids, layout = self._whole_tree

        def added_us(run: int) -> float:
            timed = Timed(routing, run)
            verifier.verify(ids, layout, verifier.routes(tokens), timed)
            return timed.added_us

        runs, speed = tracing.paced(lambda: [*map(added_us, range(ROUTING_RUNS + 1))])
        return {"routing_us": speed * median(runs[1:])}

    @cached_property
    def _whole_tree(self) -> tuple[Verifier, Tensor, Layout]:
        """A forward of as many tokens as a tree has, behind as many as a prompt."""
        tracing, tokens = self.tracing, self.tracing.tree.nodes + 1
        room = tracing.prompt_tokens + tokens
        positions = np.arange(tracing.prompt_tokens, room)
        slot = CacheSlot(0, tracing.prompt_tokens, causal(tokens), positions)
        ids = next(iter(tracing.held_out.streams.values()))[:tokens].long()
        verifier = Verifier(tracing.world.target, 1, room, tracing.device)
        return verifier, ids.to(tracing.device), make_layout([slot], verifier.cache)

    def _learnt(self, ask: Message, budget: BudgetHook | None) -> Iterator[Message]:
        """Steps behind some of the odd prompts, evenly spread."""
        count = ask["learn_from"]
        for workload in ask["workloads"]:
            for prompt in range(count):
                place = 2 * (prompt * ask["prompts"] // count) + 1
                yield from self.reply({**ask, "workload": workload}, place, budget)

    def _text(self, ask: Message, place: int) -> tuple[list[int], list[int]]:
        """A prompt, and what follows it in the held-out text."""
        tracing = self.tracing
        tokens = tracing.prompt_tokens + ask["tokens"] + tracing.tree.depth + 2
        found = tracing.held_out.prompts(ask["workload"], 2 * ask["prompts"], tokens)
        return (
            found[place][: tracing.prompt_tokens],
            found[place][tracing.prompt_tokens :],
        )

    def _plain(self, tokens: int) -> Plain:
        tracing = self.tracing
        room = tracing.prompt_tokens + tokens + tracing.tree.depth + 2
        verifier = Verifier(tracing.world.target, 1, room, tracing.device)
        return Plain(verifier)


class Timed:
    """Runs a budget's routing beside the model's own, which is obeyed.

    Attributes:
        added_us: what the budget's took more, over all layers so far.
    """

    def __init__(self, routing: Routing, run: int) -> None:
        """In every second layer the budget's is first; in the next run, in others."""
        self.routing, self.run = routing, run
        self.added_us = 0.0

    def __call__(self, index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """One layer."""
        routers = [self.routing, own_routing]
        if (index + self.run) % 2:
            routers.reverse()
        us = {}
        for router in routers:
            begun = now(x.device)
            router(index, layer, x)
            us[router] = (now(x.device) - begun).us
        self.added_us += us[self.routing] - us[own_routing]
        return own_routing(index, layer, x)


def own_routing(index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own."""
    return layer.router(x)


class Watch:
    """A budget hook that routes as the model does, and notes what experts are given.

    Attributes:
        mass: by expert, [layers, E], summed over verifications, which count alike.
    """

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        self.mass = torch.zeros(layers, experts, device=device)

    def __call__(self, *_: object) -> Routing:
        """Every verification."""
        return self.route

    def route(self, index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """The model's own, noted."""
        self.mass[index] += expert_mass(layer.router.scores(x)) / len(x)
        return layer.router(x)
