"""One open checkpoint: traces of its replies, and clocks of whole steps.

A policy that cuts deeper commits less, and its next tree starts where a full tree's
would not. So in a trace a tree is drafted and verified behind *every* token, and one
token committed. Whatever a policy does then, its next step is in the trace; and since
nothing was cut, what the target would have accepted is known of every node.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch

from evict_profile.drafting import DraftClock
from evict_profile.replay.policies import Fixed, full_tree
from evict_profile.runner import CLOCK_STEPS
from evict_profile.traces import Reply
from evict_profile.traces.schema import encode_routes
from examples.small_world.engine.accept import Sampler, greedy, make_sampler
from examples.small_world.engine.checkpoint import describe_checkpoint, open_checkpoint
from examples.small_world.engine.clocks import (
    REFERENCE_CONTEXT,
    REFERENCE_TOKENS,
    StepTimes,
    make_clock,
)
from examples.small_world.engine.corpus import HeldOut
from examples.small_world.engine.engine import Engine, EngineStep
from examples.small_world.engine.limits import clocked_tokens, reply_room
from examples.small_world.engine.tree import TreeShape
from examples.small_world.engine.verifier import Verifier
from runners.clock import now
from runners.device import pick_device
from runners.protocol import Message

Result = TypeVar("Result")
CLOCK_WIDTH = 16
"""Tokens a request verifies at most while whole steps are timed: what is neither
drafting nor verification hardly depends on it."""


@dataclass(frozen=True)
class Job:
    """A reply to decode: its prompt, how it is drawn, and when it ends."""

    prompt: Sequence[int]
    sampler: Sampler
    tokens: int


class TraceSession:
    """A checkpoint in memory, and engines over it."""

    def __init__(
        self,
        folder: Path,
        tree: TreeShape,
        prompt_tokens: int,
        reference_us: float = 0.0,
    ) -> None:
        """Times are stated by `reference_us`, which is measured where it is 0."""
        self.device = pick_device("auto")
        self.checkpoint = open_checkpoint(folder, self.device)
        self.held_out = HeldOut(self.checkpoint.tokenizer)
        self.tree, self.prompt_tokens = tree, prompt_tokens
        # Of its own, because it overwrites its cache.
        room = REFERENCE_CONTEXT + REFERENCE_TOKENS
        verifier = Verifier(self.checkpoint, 1, room)
        self.reference = make_clock(verifier, self.held_out.streams["prose"])
        self.opening_us = reference_us or self.reference.median_reference_us()
        self.about = replace(
            describe_checkpoint(folder, self.checkpoint, self.device),
            depth=tree.depth,
            topk=tree.topk,
            nodes=tree.nodes,
            reference_us=self.opening_us,
        )

    @property
    def available(self) -> dict[str, int]:
        """How many prompts there are of each workload."""
        return {
            workload: self.held_out.available(workload, self.prompt_tokens)
            for workload in self.held_out.streams
        }

    def trace(self, reply: Reply, prompts: int, tokens: int) -> list[Message]:
        """The trees at every token of the reply to one of so many prompts."""
        job, engine = self.job(reply, prompts, tokens), self.engine(1, tokens)
        engine.admit(job.prompt, job.sampler, 0)
        experts = self.checkpoint.shape.experts

        def trace() -> list[Message]:
            return [
                {"position": position, **as_message(step, experts)}
                for position, step in enumerate(trace_reply(engine, tokens))
            ]

        steps, speed = self.paced(trace)
        for step in steps:
            step["draft_us"] = [speed * us for us in step["draft_us"]]
            step["verify_us"] *= speed
            step["fixed_us"] *= speed
        return steps

    def job(self, reply: Reply, prompts: int, tokens: int) -> Job:
        """What has to be decoded for a reply."""
        texts = self.held_out.prompts(reply.workload, prompts, self.prompt_tokens)
        sampler = make_sampler(
            reply.temperature,
            reply_seed(reply.workload, reply.prompt, reply.seed),
            tokens + self.tree.depth + 2,
            self.checkpoint.shape.vocab,
            self.device,
        )
        return Job(texts[reply.prompt], sampler, tokens)

    def clock(self, batch: int, steps: int = CLOCK_STEPS) -> DraftClock:
        """Median times of a step beside verification, in microseconds.

        Whole steps are timed at every depth, plain decoding included: what it takes to
        rank and to cut grows with what was drafted, and belongs to the cost of a
        level. Depths come in rounds of random order, each round with a reference, so
        that a machine that changes its speed changes it for all of them. `draft_us` is
        cumulative: its d-th entry is drafting to depth d.
        """
        engine = self.prose_engine(batch, steps)
        timed: list[list[StepTimes]] = [[] for _ in range(self.tree.depth + 1)]
        references_us = []
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps + 1):
            references_us.append(self.reference.time_reference())
            for depth in torch.randperm(len(timed), generator=generator).tolist():
                width = min(CLOCK_WIDTH, depth * self.tree.topk + 1)
                step = engine.step(Fixed("clock", depth, width), drafts_later=True)
                timed[depth].append(step.times)
        speed = self.opening_us / median(references_us)
        # The first round warms up.
        plain_us, *beside = (
            speed * median((t.step - t.verify).us for t in times[1:]) for times in timed
        )
        fixed_us = speed * median(t.fixed.us for t in timed[1][1:])
        # Each level takes time, so a cumulative time that falls is noise.
        draft_us = accumulate((us - fixed_us for us in beside), max, initial=0.0)
        return DraftClock(batch, tuple(draft_us), fixed_us, plain_us)

    def prose_engine(self, batch: int, rounds: int) -> Engine:
        """An engine that decodes a batch of prose, with room for so many rounds."""
        engine = self.engine(batch, clocked_tokens(self.tree, rounds))
        count = min(batch, self.held_out.available("prose", self.prompt_tokens))
        prompts = self.held_out.prompts("prose", count, self.prompt_tokens)
        for slot in range(batch):
            engine.admit(prompts[slot % count], greedy, slot)
        return engine

    def paced(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """Do some work; and the factor that brings its times to the session's speed."""
        before_us = self.reference.median_reference_us()
        result = work()
        around_us = (before_us + self.reference.median_reference_us()) / 2.0
        return result, self.opening_us / around_us

    def engine(self, batch: int, tokens: int) -> Engine:
        """An engine with slots for replies of so many tokens."""
        room = reply_room(self.tree, self.prompt_tokens, tokens)
        return Engine(self.checkpoint, batch, room, self.tree)


def trace_reply(engine: Engine, tokens: int) -> Iterator[EngineStep]:
    """The steps behind each of so many tokens of the one request of an engine.

    Each verifies every node that any depth and any width would have verified.
    """
    everything = full_tree(engine.tree.nodes, engine.tree.depth)
    for _ in range(tokens):
        with torch.inference_mode():
            begun = now(engine.device)
            drafted, _, levels = engine.draft(everything)
            trees = [drafted.any_best(engine.tree.nodes)]
            step = engine.finish(trees, levels, begun, root_only=True)
        yield step


def reply_seed(workload: str, prompt: int, seed: int) -> int:
    """The seed of one reply's noise: the same wherever the reply is decoded."""
    text = f"{workload}/{prompt}/{seed}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "little")


def as_message(step: EngineStep, experts: int) -> Message:
    """A step of one request, as a trace has it."""
    (tree,), (path,), (context,) = step.trees, step.paths, step.contexts
    accepted = np.zeros(tree.token.shape[1], dtype=np.bool_)
    accepted[path] = True
    routes = step.verified.routes.permute(1, 0, 2)  # nodes first
    return {
        "context": context,
        "parent": tree.parent[0].tolist(),
        "token": tree.token[0].tolist(),
        "path_prob": tree.path_prob[0].tolist(),
        "accepted": accepted.tolist(),
        "routes": encode_routes(routes.cpu().numpy(), experts),
        "draft_us": [level.us for level in step.times.levels],
        "verify_us": step.times.verify.us,
        "fixed_us": step.times.fixed.us,
    }
