"""Tree-speculative decoding of a batch: draft, cut, verify, accept, commit.

A policy says how deep to draft and which nodes to verify. All requests draft and verify
together, one a slot, each with a tree and a context of its own. The last of a request's
`ids` is the root of the next tree: it is not yet in the target's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from evict_profile.replay.policies import Policy
from evict_profile.stats import Bools, Ints
from examples.small_world.engine.accept import Sampler, accepted_path
from examples.small_world.engine.checkpoint import Checkpoint
from examples.small_world.engine.clocks import StepTimes
from examples.small_world.engine.head import DraftHead, TreeDraft
from examples.small_world.engine.layout import CacheSlot, make_layout
from examples.small_world.engine.tree import Trees, TreeShape, ancestors
from examples.small_world.engine.verifier import Verified, Verifier
from runners.clock import Timestamp, now


@dataclass
class Request:
    """One request: its text, and what the drafter has not yet seen of it."""

    ids: list[int]
    prompt: int
    sampler: Sampler
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
class EngineStep:
    """What one step did: of each request its cached tokens before it, the tree that was
    verified, the accepted nodes, and the tokens that its reply grew by."""

    contexts: list[int]
    trees: list[Trees]
    paths: list[list[int]]
    committed: list[int]
    verified: Verified
    times: StepTimes

    @property
    def levels(self) -> int:
        return len(self.times.levels)


class Engine:
    """A batch of requests, one a slot."""

    def __init__(
        self, checkpoint: Checkpoint, slots: int, room: int, tree: TreeShape
    ) -> None:
        """Slots of `room` cached tokens each: prompt, reply and the drafted tree."""
        self.tree, self.room = tree, room
        self.device = checkpoint.stack.head.device
        self.verifier = Verifier(checkpoint, slots, room)
        self.head = DraftHead(checkpoint, slots, room)
        self.requests: list[Request] = []

    @torch.inference_mode()
    def admit(self, prompt: Sequence[int], sampler: Sampler, slot: int) -> None:
        """Take a request, in a new slot or that of one that ended; run its prompt."""
        found = self.verifier.read(prompt, slot)
        first = sampler(found.logits[-1:], np.zeros(1, dtype=np.int64))
        request = Request([*prompt, *first], len(prompt), sampler)
        request.pending.append(found.streams)
        self.requests[slot : slot + 1] = [request]

    @torch.inference_mode()
    def step(self, policy: Policy, drafts_later: bool = False) -> EngineStep:
        """Decode one step of all requests.

        A policy that never drafts keeps nothing for the head, unless others follow.
        """
        begun = now(self.device)
        drafted, keep, levels = self.draft(policy)
        trees = [
            drafted.of(request).take(np.flatnonzero(row)[None])
            for request, row in enumerate(keep)
        ]
        keep_streams = drafts_later or policy.depth > 0
        step = self.finish(trees, levels, begun, keep_streams)
        policy.observe(sum(step.committed), step.times.step.us)
        return step

    def finish(
        self,
        trees: list[Trees],
        levels: Sequence[Timestamp],
        begun: Timestamp,
        keep_streams: bool = True,
        root_only: bool = False,
    ) -> EngineStep:
        """Verify and commit; what is accepted, or the target's next token alone."""
        contexts = [request.context for request in self.requests]
        before = now(self.device)
        verified = self.verify(trees)
        wanted = self.wanted(trees, verified)
        verify_time = now(self.device) - before
        paths = accepted_paths(trees, wanted)
        kept = [[] for _ in paths] if root_only else paths
        self.commit(kept, wanted, verified.streams if keep_streams else None)
        times = StepTimes(tuple(levels), verify_time, now(self.device) - begun)
        committed = [len(path) + 1 for path in kept]
        return EngineStep(contexts, trees, paths, committed, verified, times)

    @property
    def context(self) -> float:
        """Cached tokens a request, mean over the batch."""
        return sum(r.context for r in self.requests) / len(self.requests)

    def draft(self, policy: Policy) -> tuple[Trees, Bools, list[Timestamp]]:
        """Draft while the policy asks for more; trees, what to verify, and times."""
        times: list[Timestamp] = []
        draft: TreeDraft | None = None
        step = policy.begin(len(self.requests), self.context, self.tree.nodes)
        while len(times) < policy.depth:
            begun = now(self.device)
            if not step.deeper():
                break
            draft = draft or self.start_draft()
            step.extend(*draft.grow())
            times.append(now(self.device) - begun)
        trees = draft.trees if draft else Trees.empty(len(self.requests))
        return trees, step.keep(), times

    def start_draft(self) -> TreeDraft:
        """Let the head catch up with what was committed."""
        streams, ids, done = [], [], []
        for request in self.requests:
            pending = zip(*request.pending, strict=True)
            streams.append([torch.cat(parts) for parts in pending])
            ids.append(request.ids[request.drafted_rows + 1 :])
            done.append(request.drafted_rows)
            request.drafted_rows = request.context
            request.pending = []
        outs = self.head.catch_up(ids, streams, done)
        contexts = [request.context for request in self.requests]
        return TreeDraft(self.head, self.tree, contexts, outs)

    def verify(self, trees: Sequence[Trees]) -> Verified:
        ids: list[int] = []
        slots = []
        for slot, (request, tree) in enumerate(zip(self.requests, trees, strict=True)):
            ids += [request.ids[-1], *tree.token[0].tolist()]
            positions = request.context + with_root(tree.depth[0])
            seen = ancestors(tree.parent[0])
            slots.append(CacheSlot(slot, request.context, seen, positions))
        layout = make_layout(slots, self.verifier.cache)
        tokens = torch.tensor(ids, device=self.device)
        return self.verifier.verify(tokens, layout)

    def wanted(self, trees: Sequence[Trees], verified: Verified) -> list[list[int]]:
        """The target's token after each request's root and nodes."""
        out, start = [], 0
        for request, tree in zip(self.requests, trees, strict=True):
            positions = len(request.reply) + with_root(tree.depth[0])
            logits = verified.logits[start : start + len(positions)]
            out.append(request.sampler(logits, positions))
            start += len(positions)
        return out

    def commit(
        self,
        paths: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        streams: Sequence[Tensor] | None,
    ) -> None:
        """Take over paths: text, cache rows, and streams for the head."""
        sources, targets, start = [], [], 0
        for slot, (request, path, own) in enumerate(
            zip(self.requests, paths, wanted, strict=True)
        ):
            rows = np.array([0, *(node + 1 for node in path)])
            first = slot * self.room + request.context
            sources.append(first + rows)
            targets.append(first + np.arange(len(rows)))
            if streams is not None:
                index = torch.from_numpy(start + rows).to(self.device)
                request.pending.append([stream[index] for stream in streams])
            # The target's own tokens: an accepted node is the one that it wanted.
            request.ids += [own[row] for row in rows]
            start += len(own)
        self.verifier.cache.move(np.concatenate(sources), np.concatenate(targets))


def accepted_paths(
    trees: Sequence[Trees], wanted: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The nodes of each tree that the target's tokens accept."""
    return [
        accepted_path(tree.token[0].tolist(), tree.parent[0].tolist(), own)
        for tree, own in zip(trees, wanted, strict=True)
    ]


def with_root(depth: Ints) -> Ints:
    """Depths of a root and its nodes [1 + N]."""
    return np.concatenate([[0], depth])
