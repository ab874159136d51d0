"""The draft head over a batch: what EAGLE-3 does between two verifications.

It first catches up: the rows of all tokens that the last steps committed, with the
target's features (the last of them predicts the first level). Then one forward a
level, whose rows stand behind the committed ones and are forgotten afterwards.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.stats import Bools, Ints
from examples.small_world.engine.checkpoint import Checkpoint
from examples.small_world.engine.layout import (
    CacheSlot,
    KVCache,
    attend_ragged,
    make_layout,
)
from examples.small_world.engine.tree import Floats32, Trees, TreeShape


class DraftHead:
    """The drafter and the cache of its rows; one slot a request."""

    def __init__(self, checkpoint: Checkpoint, slots: int, room: int) -> None:
        drafter, stack = checkpoint.drafter, checkpoint.stack
        self.drafter, self.embedding, self.head = drafter, stack.embedding, stack.head
        self.device = device = self.head.device
        self.heads = drafter.out.shape[1] // drafter.dim
        self.cache = KVCache(1, self.heads, slots, room, drafter.dim, device)

    def forward(
        self, ids: Tensor, feature: Tensor, slots: Sequence[CacheSlot]
    ) -> Tensor:
        """What it puts out for rows [T, D] of tokens ids [T]."""
        layout = make_layout(slots, self.cache)
        embedded = F.embedding(ids, self.embedding)
        cos, sin = layout.angles
        angles = (cos.squeeze(1), sin.squeeze(1))
        x, q, k, v = self.drafter.project(embedded[None], feature[None], angles)
        q, k, v = (t[0].transpose(0, 1) for t in (q, k, v))
        self.cache.write(0, layout, k, v)
        mixed = attend_ragged(q, *self.cache.read(0, layout), layout)
        return self.drafter.finish(x[0], mixed)

    def catch_up(
        self,
        ids: Sequence[Sequence[int]],
        streams: Sequence[Sequence[Tensor]],
        done: Sequence[int],
    ) -> Tensor:
        """Run each request's new rows behind those `done`; the last output of each,
        [B, D]. `ids` are the tokens after those of the features in `streams`."""
        joined = [torch.cat(stream) for stream in zip(*streams, strict=True)]
        feature = self.drafter.feature(joined)
        slots = [
            CacheSlot.chain(slot, start, len(row))
            for slot, (row, start) in enumerate(zip(ids, done, strict=True))
        ]
        flat = torch.tensor([i for row in ids for i in row]).to(self.device)
        outs = self.forward(flat, feature, slots)
        ends = np.cumsum([len(row) for row in ids]) - 1
        return outs[torch.from_numpy(ends).to(self.device)]

    def children(self, outs: Tensor, topk: int) -> tuple[Tensor, Tensor]:
        """The `topk` best next tokens of rows [R, D]: probabilities, tokens."""
        logits = self.drafter.logits(outs, self.head)
        best = logits.softmax(dim=-1).topk(topk)
        return best.values, best.indices


class TreeDraft:
    """The trees of one step, grown level by level."""

    def __init__(
        self, head: DraftHead, shape: TreeShape, lengths: Sequence[int], outs: Tensor
    ) -> None:
        """Roots; cached rows of each request, and the last one's output [B, D]."""
        self.head, self.shape, self.lengths = head, shape, lengths
        self.outs = outs
        self.trees = Trees.empty(len(lengths))
        self._seen: list[Bools] = []
        self._frontier = np.full((len(lengths), 1), -1)
        self._frontier_prob = np.ones((len(lengths), 1), np.float32)

    def grow(self) -> tuple[Floats32, Ints | None]:
        """One level more, as a policy is shown it: see `PolicyStep.extend`."""
        parent = self._expand_best() if self.trees.token.shape[1] else None
        batch, topk = len(self.lengths), self.shape.topk
        chances, tokens = self.head.children(self.outs, topk)
        chance = chances.cpu().numpy().reshape(batch, -1, topk)
        self.trees = self.trees.grow(
            np.repeat(self._frontier, topk, axis=1),
            tokens.cpu().numpy().reshape(batch, -1),
            (self._frontier_prob[:, :, None] * chance).reshape(batch, -1),
        )
        hidden = self.trees.beyond_best(self.shape.nodes, fresh=chance[0].size)
        return np.where(hidden.reshape(chance.shape), 0.0, chance), parent

    def _expand_best(self) -> Ints:
        """Run the best of the last level, and say which they are, [B, topk]."""
        trees, topk = self.trees, self.shape.topk
        first = int(np.searchsorted(trees.depth[0], trees.depth[0, -1]))
        level = trees.path_prob[:, first:]
        rank = np.argsort(-level, axis=1, kind="stable")[:, :topk]
        chosen = first + rank
        self._see(rank // topk)
        own = (np.arange(len(chosen))[:, None], chosen)
        ids = trees.token[own]
        levels = len(self._seen[0][0]) // topk
        slots = [
            CacheSlot(
                slot, length, self._seen[slot], np.full(topk, length + levels - 1)
            )
            for slot, length in enumerate(self.lengths)
        ]
        origin = rank // topk + own[0] * (len(self.outs) // len(rank))
        device = self.outs.device
        feature = self.outs[torch.from_numpy(origin.ravel()).to(device)]
        tokens = torch.from_numpy(ids.ravel()).to(device)
        self.outs = self.head.forward(tokens, feature, slots)
        self._frontier = chosen
        self._frontier_prob = trees.path_prob[own]
        return rank

    def _see(self, origin: Ints) -> None:
        """Of the levels' rows an expanded node sees its parent's, and itself."""
        topk = self.shape.topk
        own = np.eye(topk, dtype=np.bool_)
        if not self._seen:
            self._seen = [own for _ in origin]
            return
        pairs = zip(self._seen, origin, strict=True)
        self._seen = [np.concatenate((seen[rows], own), axis=1) for seen, rows in pairs]
