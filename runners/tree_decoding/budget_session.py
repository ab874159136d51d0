"""Expert budgets over one open world: replies under them, learning for them, and what
their routing takes.

Prompts are spaced over the held-out text, twice as many as are asked for: replies are
recorded behind the even ones, and learning is done behind the odd ones.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from statistics import fmean, median

import torch
from torch import Tensor

from evict_profile.runtime.budget import expert_mass
from runners.protocol import Message, Refusal
from runners.torch_moe.model import MoeLayer
from runners.tree_decoding.accept import sampling
from runners.tree_decoding.budgeted import Given, Plain, budgeted_reply
from runners.tree_decoding.budgets import (
    Budget,
    Ranking,
    Routes,
    Routing,
    make_budget,
)
from runners.tree_decoding.clocks import now
from runners.tree_decoding.layout import Hall
from runners.tree_decoding.session import MOST_TOKENS, TraceSession
from runners.tree_decoding.verifier import Verifier

ROUTING_RUNS = 30


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
        """The budget that a request names."""
        shape = self.shape
        return make_budget(ask, shape.top_k, shape.experts, self.tracing.device)

    def reply(self, ask: Message, place: int, budget: Routes | None) -> list[Message]:
        """The steps of a reply behind the prompt at one of the places."""
        if ask["tokens"] > MOST_TOKENS:
            raise Refusal("world", f"replies have {MOST_TOKENS} tokens at most")
        prompt, text = self._text(ask, place)
        greedy = sampling(0.0, 0, 0, self.tracing.vocab, self.tracing.device)
        engine = self.tracing.engine(1, ask["tokens"], budget)
        engine.admit(prompt, Given(text) if ask["given"] else greedy, 0)
        return budgeted_reply(engine, self.plain(ask["tokens"]), ask["tokens"])

    def learn(self, ask: Message) -> Message:
        """What other text tells of each layer.

        `mass`: share of the router's probability that each expert gets, [layers, E];
        `curve`: the same by rank within a verification, largest first, [layers, E];
        `kl`: how far the output is off if that layer alone has `least` experts,
        [layers], in nats a token.
        """
        watch = Watch(self.shape.layers, self.shape.experts, self.tracing.device)
        for _ in self._learnt({**ask, "given": False}, watch):
            pass
        everything = [self.shape.experts] * self.shape.layers
        kl = []
        for layer in range(self.shape.layers):
            alone = everything.copy()
            alone[layer] = ask["least"]
            steps = self._learnt({**ask, "given": True}, Budget(tuple(alone)))
            kl.append(fmean(value for step in steps for value in step["kl"]))
        return {
            "mass": watch.share(watch.mass),
            "curve": watch.share(watch.curve),
            "kl": kl,
        }

    @torch.inference_mode()
    def clock_routing(self, ask: Message) -> Message:
        """What a budget's routing adds to one verification, over the model's own.

        Both take turns, layer by layer, over the same inputs.
        """
        budget = self.budget(ask)
        assert budget is not None
        alike = torch.ones(self.tracing.tree.nodes + 1, device=self.tracing.device)
        routing = budget.routing(alike if budget.exponent else None)
        x = torch.randn(self.tracing.tree.nodes + 1, self.shape.hidden)
        x = x.to(self.tracing.device)
        timed, speed = self.tracing.paced(
            lambda: [self._added_us(x, routing) for _ in range(ROUTING_RUNS + 1)]
        )
        return {"routing_us": speed * median(timed[1:])}

    def _added_us(self, x: Tensor, routing: Routing) -> float:
        added_us = 0.0
        for index, layer in enumerate(self._layers):
            begun = now(x.device)
            routing(index, layer, x)
            between = now(x.device)
            layer.router(x)
            ended = now(x.device)
            added_us += (between - begun).us - (ended - between).us
        return added_us

    def _learnt(self, ask: Message, budget: Routes) -> Iterator[Message]:
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
        return Plain(verifier, Hall(room, self.shape.head_dim, tracing.device))

    @cached_property
    def _layers(self) -> list[MoeLayer]:
        return Verifier(self.tracing.world.target, 1, 1, self.tracing.device).stack.moe


class Watch:
    """Routes as the model does, and notes what each expert is given.

    Attributes:
        mass: by expert, [layers, E]; every verification counts alike.
        curve: by rank within a verification, [layers, E].
    """

    ranking: Ranking = "mass"
    exponent = 0.0

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        self.mass = torch.zeros(layers, experts, device=device)
        self.curve = torch.zeros_like(self.mass)

    def routing(self, weights: Tensor | None) -> Routing:
        """The model's own, watched."""

        def watched(index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
            mass = expert_mass(layer.router.scores(x)) / len(x)
            self.mass[index] += mass
            self.curve[index] += mass.sort(descending=True).values
            return layer.router(x)

        return watched

    @staticmethod
    def share(sums: Tensor) -> list[Sequence[float]]:
        """Of each layer's whole."""
        shares: list[Sequence[float]] = (sums / sums.sum(dim=1, keepdim=True)).tolist()
        return shares
