"""Tree-speculative decoding of a batch: draft, cut, verify, accept, commit.

The engine is the server of the small world. It asks a policy how deep to draft and
which nodes to verify, and knows nothing of prices. A batch slot holds one request; all
requests draft and verify together, each with a tree and a context of its own.

A request's `ids` are its prompt and reply so far. The last of them is the root of the
next tree: it is known, and not yet in the target's cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from evict_profile.stats import Floats, Ints
from runners.tree_decoding.accept import Choice, accepted_path
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.clocks import Moment, StepTimes, now
from runners.tree_decoding.head import DraftHead, Drafting
from runners.tree_decoding.layout import CacheSlot, causal, make_layout
from runners.tree_decoding.policy import Policy
from runners.tree_decoding.tree import Trees, TreeShape, ancestors
from runners.tree_decoding.verifier import Routing, Verified, Verifier


@dataclass
class Request:
    """One request: its text, and what the drafter has not yet seen of it."""

    ids: list[int]
    prompt: int
    sampling: Choice
    drafted_rows: int = 0
    pending: list[list[Tensor]] = field(default_factory=list)

    @property
    def context(self) -> int:
        """Tokens in the target's cache: all but the root."""
        return len(self.ids) - 1

    @property
    def reply(self) -> list[int]:
        """Tokens decoded so far; the prompt's own forward gave the first."""
        return self.ids[self.prompt :]


@dataclass(frozen=True)
class Step:
    """What one step did.

    Attributes:
        trees: what was verified of each request, roots left out.
        paths: accepted nodes of each, as indices into its tree.
        committed: tokens of each request: accepted nodes and the target's own.
        routes: experts that ran, [layers, T, k], requests end to end, roots first.
        levels: levels drafted.
    """

    trees: list[Trees]
    paths: list[list[int]]
    committed: list[int]
    routes: Tensor
    levels: int
    times: StepTimes


Rerun = Callable[[], Verified]
"""Runs the verification at hand as the model's own routers have it."""

BudgetHook = Callable[["Engine", Sequence[Trees], Rerun], Routing | None]
"""How one verification of these trees is routed; None as the model has it."""


class Engine:
    """A batch of requests, one a slot."""

    def __init__(
        self,
        world: Checkpoint,
        slots: int,
        room: int,
        tree: TreeShape,
        device: torch.device,
        budget: BudgetHook | None = None,
    ) -> None:
        """Slots of `room` cached tokens each: prompt, reply and the drafted tree.

        `budget` routes every verification, and no prompt.
        """
        self.tree, self.device, self.room = tree, device, room
        self.budget = budget
        self.verifier = Verifier(world.target, slots, room, device)
        self.head = DraftHead(world.drafter, world.target, slots, room, device)
        self.requests: list[Request] = []

    @torch.inference_mode()
    def admit(self, prompt: Sequence[int], sampling: Choice, slot: int) -> None:
        """Take a request, in a new slot or that of one that ended; run its prompt."""
        count = len(prompt)
        own = CacheSlot(slot, 0, causal(count), np.arange(count))
        layout = make_layout([own], self.verifier.cache)
        ids = torch.tensor(prompt, device=self.device)
        found = self.verifier.verify(ids, layout, self.verifier.routes(count))
        first = sampling.tokens(found.logits[-1:], np.zeros(1, dtype=np.int64))
        request = Request([*prompt, *first], count, sampling)
        request.pending.append(found.streams)
        self.requests[slot : slot + 1] = [request]

    @torch.inference_mode()
    def step(self, policy: Policy) -> Step:
        """Decode one step of all requests."""
        begun = now(self.device)
        drafted, levels = self.draft(policy)
        trees = self.cut(drafted, policy)
        before = now(self.device)
        found, routes = self.verify(trees)
        wanted = self.wanted(trees, found)
        verified = now(self.device) - before
        paths = self.paths(trees, wanted)
        self.commit(trees, paths, wanted, found, keep_streams=policy.depth > 0)
        committed = [len(path) + 1 for path in paths]
        times = StepTimes(tuple(levels), verified, now(self.device) - begun)
        policy.observe(sum(committed), times.step.us)
        return Step(trees, paths, committed, routes, len(levels), times)

    @property
    def context(self) -> float:
        """Cached tokens a request, mean over the batch."""
        return sum(r.context for r in self.requests) / len(self.requests)

    def draft(self, policy: Policy) -> tuple[Trees, list[Moment]]:
        """Draft while the policy asks for more; the trees, and times of levels."""
        trees = Trees.empty(len(self.requests))
        times: list[Moment] = []
        drafting: Drafting | None = None
        while len(times) < policy.depth:
            begun = now(self.device)
            if not policy.deeper(*self.ranked(trees), self.context):
                break
            drafting = drafting or self.start_drafting()
            drafting.grow()
            trees = drafting.trees
            times.append(now(self.device) - begun)
        return trees, times

    def ranked(self, trees: Trees) -> tuple[Floats, Ints, Ints]:
        """Path probability, depth and parent of the best nodes, [B, N] each."""
        best = trees.best(self.tree.nodes)
        return best.path_prob.astype(np.float64), best.depth, best.parent

    def start_drafting(self) -> Drafting:
        """Let the head catch up with what was committed."""
        contexts = [request.context for request in self.requests]
        streams, ids, done = [], [], []
        for request in self.requests:
            streams.append(
                [torch.cat(parts) for parts in zip(*request.pending, strict=True)]
            )
            ids.append(request.ids[request.drafted_rows + 1 :])
            done.append(request.drafted_rows)
            request.drafted_rows = request.context
            request.pending = []
        outs = self.head.catch_up(ids, streams, done)
        return Drafting(self.head, self.tree, contexts, outs)

    def cut(self, drafted: Trees, policy: Policy) -> list[Trees]:
        """What is to be verified of each request's tree."""
        batch = len(self.requests)
        best = drafted.best(self.tree.nodes)
        keep = policy.keep(*self.ranked(best), self.context)
        return [best.of(b).take(np.flatnonzero(keep[b])[None]) for b in range(batch)]

    def verify(self, trees: Sequence[Trees]) -> tuple[Verified, Tensor]:
        """Run the target over roots and trees; also the routes that it took."""
        ids: list[int] = []
        slots = []
        for slot, (request, tree) in enumerate(zip(self.requests, trees, strict=True)):
            ids += [request.ids[-1], *tree.token[0].tolist()]
            depth = np.concatenate([[0], tree.depth[0]])
            seen = ancestors(tree.parent[0])
            slots.append(
                CacheSlot(slot, request.context, seen, request.context + depth)
            )
        layout = make_layout(slots, self.verifier.cache)
        routes = self.verifier.routes(len(ids))
        tokens = torch.tensor(ids, device=self.device)

        def run(routing: Routing | None = None) -> Verified:
            return self.verifier.verify(tokens, layout, routes, routing)

        routing = self.budget(self, trees, run) if self.budget else None
        return run(routing), routes

    def paths(
        self, trees: Sequence[Trees], wanted: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """The nodes of each tree that the target's tokens accept."""
        return [
            accepted_path(tree.token[0].tolist(), tree.parent[0].tolist(), own)
            for tree, own in zip(trees, wanted, strict=True)
        ]

    def wanted(self, trees: Sequence[Trees], found: Verified) -> list[list[int]]:
        """The target's token after each request's root and nodes."""
        out, start = [], 0
        for request, tree in zip(self.requests, trees, strict=True):
            end = start + 1 + tree.token.shape[1]
            depth = np.concatenate([[0], tree.depth[0]])
            positions = len(request.reply) + depth
            out.append(request.sampling.tokens(found.logits[start:end], positions))
            start = end
        return out

    def commit(
        self,
        trees: Sequence[Trees],
        paths: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        found: Verified,
        keep_streams: bool,
    ) -> None:
        """Take over accepted paths: text, cache rows, and what the head will read."""
        sources, targets, start = [], [], 0
        for slot, (request, tree, path, own) in enumerate(
            zip(self.requests, trees, paths, wanted, strict=True)
        ):
            rows = np.array([0, *(node + 1 for node in path)])
            first = slot * self.room + request.context
            sources.append(first + rows)
            targets.append(first + np.arange(len(rows)))
            if keep_streams:
                index = torch.from_numpy(start + rows).to(self.device)
                request.pending.append([s[index] for s in found.streams])
            request.ids += [*(tree.token[0, n].item() for n in path), own[rows[-1]]]
            start += 1 + tree.token.shape[1]
        self.verifier.cache.move(np.concatenate(sources), np.concatenate(targets))
