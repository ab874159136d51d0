"""Draft trees, made by SGLang's own drafter functions from made-up probabilities."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from evict_profile.integrations.sglang.tree import Drafted, cut


@dataclass(frozen=True)
class Shape:
    """A tree's shape, as SGLang's server is told it.

    `steps` were drafted, and are the stride of a list of parents whatever is cut.
    """

    requests: int
    topk: int
    steps: int
    width: int

    @property
    def levels(self):
        """Levels that so many tokens can fill."""
        return min(self.steps, self.width - 1)


@st.composite
def shapes(draw):
    """Shapes with which a drafter has enough nodes to choose from."""
    topk, steps = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    drafted = topk + (steps - 1) * topk**2
    width = draw(st.integers(2, min(1 + drafted, 12)))
    return Shape(draw(st.integers(1, 3)), topk, steps, width)


def drafted(shape, seed, certain):
    """A batch of trees; `certain` puts probabilities of 1.0 in, which tie."""
    from sglang.srt.speculative.eagle_utils import organize_draft_results
    from sglang.srt.speculative.spec_utils import select_top_k_tokens

    dice = torch.Generator().manual_seed(seed)
    lists: tuple[list[Tensor], ...] = ([], [], [])
    scores, hidden, rows = None, torch.zeros(shape.requests, 1), shape.requests
    for step in range(shape.steps):
        chances = torch.rand(rows, shape.topk, generator=dice).sort(descending=True)[0]
        if certain:
            chances = chances.round()
        tokens = torch.randint(0, 9, (rows, shape.topk), generator=dice)
        _, hidden, scores, level = select_top_k_tokens(
            step, chances, tokens, hidden, scores, shape.topk
        )
        for found, each in zip(lists, level, strict=True):
            found.append(each)
        rows = shape.requests * shape.topk
    parents, index, chosen = organize_draft_results(*lists, shape.width)
    path_prob = torch.cat(lists[0], dim=1).flatten(1).gather(1, index)
    return Drafted(parents, index, chosen, path_prob, shape.topk)


@st.composite
def cut_trees(draw):
    """Trees of any shape, cut to any width, and the shape that they then have."""
    shape = draw(shapes())
    whole = drafted(shape, draw(st.integers(0, 2**20)), certain=False)
    width = draw(st.integers(2, shape.width))
    return Shape(shape.requests, shape.topk, shape.steps, width), cut(whole, width)


def parents(tree, row):
    """The parent of each node of a request's tree; node 0 is the root, -1 is none."""
    index, groups = tree.index[row].tolist(), tree.parent_list[row].tolist()
    return [-1] + [
        0 if flat < tree.topk else 1 + index.index(groups[flat // tree.topk])
        for flat in index
    ]
