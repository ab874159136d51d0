"""A drafter that drafts as SGLang's does, in plain lists: what it drafted is known.

The first level has `topk` nodes. Each further level has `topk` children of each of the
`topk` best candidates of the level before. A node's flat index counts all of them.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from evict_profile.integrations.sglang.tree import Drafted

SHARES = (1.0, 1.0, 0.75, 0.5, 0.25, 0.125, 0.0)
"""Exact in floating point, so that every tie is a real one."""


@dataclass(frozen=True)
class Node:
    """A node by its flat index; the parent is one, too, -1 the root."""

    parent: int
    depth: int
    token: int
    path_prob: float


@dataclass(frozen=True)
class DraftLists:
    """What was drafted for a batch: nodes of each request, and SGLang's lists."""

    topk: int
    steps: int
    nodes: list[list[Node]]
    expanded: list[list[list[int]]]

    def lists(self):
        topk, batch = self.topk, len(self.nodes)
        scores, tokens, parents = [], [], []
        for level in range(self.steps):
            low = topk + (level - 1) * topk**2 if level else 0
            high = topk + level * topk**2
            rows = [nodes[low:high] for nodes in self.nodes]
            prob = torch.tensor([[node.path_prob for node in row] for row in rows])
            scores.append(prob.view(batch, -1, topk))
            tokens.append(torch.tensor([[node.token for node in row] for row in rows]))
            parents.append(torch.tensor([each[level] for each in self.expanded]))
        return scores, tokens, parents

    def is_closed(self, index):
        return all(
            own[i].parent in (-1, *row)
            for own, row in zip(self.nodes, index.tolist(), strict=True)
            for i in row
        )

    def drafted(self, width):
        """The best `width` - 1 nodes of each request, parents first among equals."""
        chosen = [
            sorted(
                sorted(range(len(own)), key=lambda i: -own[i].path_prob)[: width - 1]
            )
            for own in self.nodes
        ]
        return self.chosen(chosen)

    def chosen(self, index):
        picked = [
            [own[i] for i in row] for own, row in zip(self.nodes, index, strict=True)
        ]
        parents = self.lists()[2]
        return Drafted(
            torch.cat(parents[:-1], 1)
            if len(parents) > 1
            else torch.empty(len(index), 0, dtype=torch.int64),
            torch.tensor(index),
            torch.tensor([[node.token for node in row] for row in picked]),
            torch.tensor([[node.path_prob for node in row] for row in picked]),
            self.topk,
        )


def on_host(drafted):
    tensors = (drafted.path_prob, drafted.index, drafted.parent_list)
    return *(tensor.numpy() for tensor in tensors), drafted.topk


def organized(score_list, token_list, parents_list, draft_tokens):
    scores = torch.cat(score_list, 1).flatten(1)
    best = torch.sort(scores, dim=1, descending=True, stable=True).indices
    index = best[:, : draft_tokens - 1].sort(dim=1).values
    tokens = torch.cat(token_list, 1).gather(1, index)
    return torch.cat(parents_list[:-1], 1), index, tokens


def drafting(seed, batch, topk, steps):
    generator = torch.Generator().manual_seed(seed)
    nodes: list[list[Node]] = []
    expanded: list[list[list[int]]] = []
    for _ in range(batch):
        own: list[Node] = []
        beams = [list(range(-1, topk))]
        parents, depth = [-1], 1
        for level in range(steps):
            first = len(own)
            for parent in parents:
                above = own[parent].path_prob if parent >= 0 else 1.0
                drawn = torch.randint(len(SHARES), (topk,), generator=generator)
                names = torch.randperm(50, generator=generator)[:topk].tolist()
                for share, token in zip(drawn.tolist(), names, strict=True):
                    own.append(Node(parent, depth, token, above * SHARES[share]))
            ranked = sorted(range(first, len(own)), key=lambda i: -own[i].path_prob)
            parents, depth = ranked[:topk], depth + 1
            # The first level is expanded whole, in its order.
            parents = list(range(topk)) if level == 0 else parents
            if level:
                beams.append(parents)
        nodes.append(own)
        expanded.append(beams)
    return DraftLists(topk, steps, nodes, expanded)


@st.composite
def draftings(draw):
    return drafting(
        draw(st.integers(0, 10**6)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )


@st.composite
def trees(draw):
    made = draw(draftings())
    return made, made.drafted(draw(st.integers(2, len(made.nodes[0]) + 1)))
