"""One open world: traces of its replies, and clocks of whole steps.

A policy that cuts deeper commits less, and its next tree starts where a full tree's
would not. So in a trace a tree is drafted and verified behind *every* token, and one
token committed. Whatever a policy does then, the next place is in the trace; and since
nothing was cut, what the target would have accepted is known of every node.
"""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from evict_profile.stats import Bools
from runners.protocol import Message
from runners.torch_moe.device import pick_device
from runners.tree_decoding.accept import accepted_path, sampling
from runners.tree_decoding.checkpoint import describe_world, open_world
from runners.tree_decoding.clocks import (
    REFERENCE_CONTEXT,
    REFERENCE_TOKENS,
    Reference,
    StepTimes,
    now,
)
from runners.tree_decoding.corpus import HeldOut
from runners.tree_decoding.engine import BudgetHook, Engine
from runners.tree_decoding.limits import (
    check_options,
    check_tokens,
    clocked_tokens,
    reply_room,
)
from runners.tree_decoding.policy import Always, Shallow
from runners.tree_decoding.serving import Job
from runners.tree_decoding.tree import Trees, TreeShape
from runners.tree_decoding.verifier import Verifier

Result = TypeVar("Result")
CLOCK_WIDTH = 16
"""Tokens a request verifies at most while whole steps are timed: what is neither
drafting nor verification hardly depends on it."""


class TraceSession:
    """A world in memory, and engines over it."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self.device = pick_device(options.get("device", "auto"))
        self.world = open_world(folder)
        check_options(options, self.world, self.device)
        # Every engine copies the target: from where it runs, that is quick.
        self.world.target.to(self.device)
        self.held_out = HeldOut(self.world.tokenizer)
        self.prompt_tokens = int(options["prompt_tokens"])
        self.tree = TreeShape(options["depth"], options["topk"], options["nodes"])
        self.folder = folder
        self.reference = self.make_reference()
        self.opening_us = options["reference_us"] or self.reference.settled_us()

    def answer_open(self) -> Message:
        """What is traced, and how many prompts there are."""
        available = {
            workload: self.held_out.available(workload, self.prompt_tokens)
            for workload in self.held_out.streams
        }
        about = describe_world(self.folder, self.world, self.device)
        tree = {name: getattr(self.tree, name) for name in ("depth", "topk", "nodes")}
        speed = {"reference_us": self.opening_us}
        return {"about": {**about, **tree, **speed, "workloads": available}}

    def trace(self, ask: Message) -> Message:
        """The trees at every place of one reply."""
        job, engine = self.job(ask), self.engine(1, ask["tokens"])
        engine.admit(job.prompt, job.sampling, 0)
        steps, speed = self.paced(lambda: trace_reply(engine, job.tokens))
        return {"steps": [as_message(step, self.experts, speed) for step in steps]}

    def job(self, ask: Message) -> Job:
        """The reply that a request to trace names."""
        check_tokens(ask["tokens"])
        prompts = self.held_out.prompts(
            ask["workload"], ask["prompts"], self.prompt_tokens
        )
        noise = reply_seed(ask["workload"], ask["prompt"], ask["seed"])
        places = ask["tokens"] + self.tree.depth + 2
        drawn = sampling(ask["temperature"], noise, places, self.vocab, self.device)
        return Job(prompts[ask["prompt"]], drawn, ask["tokens"])

    def clock(self, ask: Message) -> Message:
        """Median times of a step beside verification, in microseconds.

        Whole steps are timed at every depth, plain decoding included: what it takes to
        rank and to cut grows with what was drafted, and belongs to the price of a
        level. Depths come in rounds of random order, each round with a reference, so
        that a machine that changes its speed changes it for all of them. `draft_us` is
        cumulative: its d-th entry is drafting to depth d.
        """
        batch, rounds = ask["batch"], ask["steps"]
        engine = self.crowded(batch, rounds)
        timed: list[list[StepTimes]] = [[] for _ in range(self.tree.depth + 1)]
        references_us = []
        generator = torch.Generator().manual_seed(0)
        for _ in range(rounds + 1):
            references_us.append(self.reference.us())
            for depth in torch.randperm(len(timed), generator=generator).tolist():
                timed[depth].append(engine.step(self.clocked(depth)).times)
        speed = self.opening_us / median(references_us)
        # The first round warms up.
        plain_us, *beside = (speed * median(map(beside_us, t[1:])) for t in timed)
        fixed_us = speed * median(t.fixed.us for t in timed[1][1:])
        return {
            "draft_us": [0.0, *(us - fixed_us for us in beside)],
            "fixed_us": fixed_us,
            "plain_fixed_us": plain_us,
        }

    def clocked(self, levels: int) -> Shallow:
        """The policy whose steps are timed at a depth."""
        width = min(CLOCK_WIDTH, levels * self.tree.topk + 1)
        return Shallow(self.tree.depth, width, levels)

    def crowded(self, batch: int, rounds: int) -> Engine:
        """An engine that decodes a batch of prose, with room for so many rounds."""
        engine = self.engine(batch, clocked_tokens(self.tree, rounds))
        most = self.held_out.available("prose", self.prompt_tokens)
        prompts = self.held_out.prompts("prose", min(batch, most), self.prompt_tokens)
        for slot in range(batch):
            greedy = sampling(0.0, 0, 0, self.vocab, engine.device)
            engine.admit(prompts[slot % len(prompts)], greedy, slot)
        return engine

    def paced(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """Do some work; and the factor that brings its times to the opening's speed."""
        before_us = self.reference.settled_us()
        result = work()
        around_us = (before_us + self.reference.settled_us()) / 2.0
        return result, self.opening_us / around_us

    def make_reference(self) -> Reference:
        """A reference with a cache of its own, which it overwrites."""
        room = REFERENCE_CONTEXT + REFERENCE_TOKENS
        verifier = Verifier(self.world.target, 1, room, self.device)
        return Reference(verifier, self.held_out.streams["prose"])

    def engine(
        self, batch: int, tokens: int, budget: BudgetHook | None = None
    ) -> Engine:
        """An engine with slots for replies of so many tokens."""
        room = reply_room(self.tree, self.prompt_tokens, tokens)
        return Engine(self.world, batch, room, self.tree, self.device, budget)

    @property
    def vocab(self) -> int:
        """Tokens there are."""
        return self.world.target.shape.vocab

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return self.world.target.shape.experts


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


def beside_us(times: StepTimes) -> float:
    """A step's time beside verification."""
    return (times.step - times.verify).us


def reply_seed(workload: str, prompt: int, seed: int) -> int:
    """The seed of one reply's noise: the same wherever the reply is decoded."""
    text = f"{workload}/{prompt}/{seed}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "little")


def as_message(step: TracedStep, experts: int, speed: float) -> Message:
    """A step as JSON; routes as bytes, little-endian, [nodes + 1, layers, k].

    Its times are multiplied by `speed`.
    """
    tree = step.tree
    return {
        "position": step.position,
        "context": step.context,
        "parent": tree.parent[0].tolist(),
        "token": tree.token[0].tolist(),
        "path_prob": tree.path_prob[0].tolist(),
        "accepted": step.accepted.tolist(),
        "routes": encode_routes(step.routes, experts),
        "draft_us": [speed * level.us for level in step.times.levels],
        "verify_us": speed * step.times.verify.us,
        "fixed_us": speed * step.times.fixed.us,
    }


def encode_routes(routes: Tensor, experts: int) -> str:
    """Routes [layers, nodes + 1, k] as base64 of the smallest integers that do."""
    kind = "<u1" if experts <= 1 << 8 else "<u2"
    ordered = routes.permute(1, 0, 2).cpu().numpy().astype(kind)
    return base64.b64encode(ordered.tobytes()).decode()
