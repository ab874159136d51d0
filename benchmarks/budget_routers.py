"""What expert budgets lose on planted routers that pick by bias or groups, by ranking.

    python -m benchmarks.budget_routers --out docs/research/data/budgets-routers.csv

A layer's router is drawn, and its bias balanced as in DeepSeek-V3's training. The
tokens of a tree share half of what their logits depend on, and experts differ in
popularity. Lost is the share of gate weight on experts that a budget drops; changed is
the squared change of gates over their squares. Both are means over nodes by path
probability, in per cent; rivals are differences with their interval over layers. No
expert runs; a trained router may lose more or less.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.common import command
from evict_profile.runtime.budget import (
    INSIDE,
    Groups,
    picking_order,
    route,
    scores_of,
)
from evict_profile.stats import Bootstrap, Floats

BUDGETS = (16, 32, 64, 96)
LAYERS, TREES, NODES, DIMENSIONS = 12, 10, 60, 64
GAIN, POPULARITY, OFFSET = 2.0, 1.0, -4.0
"""Standard deviation of logits, that of experts' own, and the mean of logits."""

BALANCE_STEPS, BALANCE_TOKENS, BALANCE_RATE = 400, 256, 0.02


@dataclass(frozen=True)
class Family:
    """How a family's router picks; without a bias its scores are a softmax."""

    experts: int
    top_k: int
    groups: Groups
    is_biased: bool


FAMILIES = {
    "DeepSeek-V3, Ling": Family(256, 8, Groups(8, 4), is_biased=True),
    "GLM-4.5": Family(128, 8, Groups(1, 1), is_biased=True),
    "DeepSeek-V2": Family(160, 6, Groups(8, 3), is_biased=False),
}


@dataclass(frozen=True)
class Tree:
    """Scores of a tree's tokens [T, E], the gates of the router, and path
    probabilities [T].
    """

    scores: Tensor
    order: Tensor
    gates: Tensor
    path_prob: Tensor


class Layer:
    """A drawn router of a family, with its balanced bias."""

    def __init__(self, family: Family, seed: int) -> None:
        self.family = family
        self._rng = torch.Generator().manual_seed(seed)
        self._weight = self._drawn(family.experts, DIMENSIONS)
        self._popularity = POPULARITY * self._drawn(family.experts)
        self.bias = torch.zeros(family.experts) if family.is_biased else None
        if self.bias is not None:
            self._balance(self.bias)

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._rng)

    def scores(self, tokens: int, texts: int = 1) -> Tensor:
        shared = self._drawn(texts, 1, DIMENSIONS)
        hidden = shared + self._drawn(texts, tokens // texts, DIMENSIONS)
        hidden = hidden.flatten(0, 1)
        unit = hidden / hidden.norm(dim=1, keepdim=True)
        logits = GAIN * unit @ self._weight.T + self._popularity + OFFSET
        return scores_of(logits, "sigmoid" if self.family.is_biased else "softmax")

    def order(self, scores: Tensor) -> Tensor:
        return picking_order(scores, self.bias, self.family.groups)

    def picks(self, scores: Tensor) -> Tensor:
        """1 for each expert that a token runs, [T, E]."""
        ids = self.order(scores).topk(self.family.top_k, dim=1).indices
        return torch.zeros_like(scores).scatter_(1, ids, 1.0)

    def _balance(self, bias: Tensor) -> None:
        for step in range(BALANCE_STEPS):
            load = self.picks(self.scores(BALANCE_TOKENS, texts=64)).sum(dim=0)
            rate = BALANCE_RATE * 0.5 ** (4 * step // BALANCE_STEPS)
            bias -= rate * (load - load.mean()).sign()

    def tree(self) -> Tree:
        scores = self.scores(NODES)
        worth = scores * self.picks(scores)
        gates = worth / worth.sum(dim=1, keepdim=True)
        return Tree(scores, self.order(scores), gates, self._path_prob())

    def _path_prob(self) -> Tensor:
        """Of nodes whose parents are about a quarter to half as deep in the list."""
        found = [1.0]
        for node in range(1, NODES):
            low, high = max(0, node // 4 - 1), node // 2 + 1
            parent = int(torch.randint(low, high, (1,), generator=self._rng))
            chance = 0.1 + 0.8 * float(torch.rand(1, generator=self._rng))
            found.append(chance * found[parent])
        return torch.tensor(found)


RANKINGS: Mapping[str, Callable[[Layer, Tree], Tensor]] = {
    "gate": lambda layer, tree: tree.gates,
    "score of its picks": lambda layer, tree: tree.scores * (tree.gates > 0),
    "biased score of its picks": lambda layer, tree: (
        (tree.scores + (0.0 if layer.bias is None else layer.bias)) * (tree.gates > 0)
    ),
    "one for each pick": lambda layer, tree: (tree.gates > 0).float(),
    "mass: all scores": lambda layer, tree: tree.scores,
}
"""What a token counts for each expert, [T, E]."""


def routed(
    layer: Layer, tree: Tree, counted: Tensor, budget: int, order: Tensor
) -> Tensor:
    """Gates within the budget of the best experts by `counted`, [T, E]."""
    ids = route(
        counted,
        layer.family.top_k,
        budget,
        renormalise=False,
        node_weights=tree.path_prob.sqrt(),
        order=order,
    ).topk_ids
    worth = torch.zeros_like(tree.gates).scatter_(1, ids, 1.0) * tree.scores
    return worth / worth.sum(dim=1, keepdim=True)


def orders(layer: Layer, tree: Tree, budget: int) -> dict[str, Tensor]:
    """How a token picks among the kept experts, where a router has bias and groups."""
    groups, bias = layer.family.groups, layer.bias
    found = {"own groups first": tree.order}
    if bias is None or groups.total == 1:
        return found
    worth = (tree.gates * tree.path_prob.sqrt()[:, None]).sum(dim=0)
    kept = worth.sort(descending=True, stable=True).indices[:budget]
    dropped = torch.ones_like(bias).index_fill_(0, kept, 0.0)
    without = bias - 2.0 * dropped
    return found | {
        "own picks first": picking_order(tree.scores, bias) + INSIDE * (tree.gates > 0),
        "groups by kept experts": picking_order(tree.scores, without, groups),
    }


def mean(tree: Tree, off: Tensor) -> float:
    """Of tokens, by path probability; in per cent."""
    return float(100.0 * (off * tree.path_prob).sum() / tree.path_prob.sum())


def losses(layer: Layer, tree: Tree, budget: int) -> dict[str, float]:
    """Gate weight lost by each ranking, and the change of gates by each order."""
    found = {}
    for name, counted in RANKINGS.items():
        gates = routed(layer, tree, counted(layer, tree), budget, tree.order)
        gone = (tree.gates * (gates == 0.0)).sum(dim=1)
        found[f"lost by {name}"] = mean(tree, gone)
    for name, order in orders(layer, tree, budget).items():
        gates = routed(layer, tree, tree.gates, budget, order)
        off = (gates - tree.gates).square().sum(dim=1)
        found[f"changed, {name}"] = mean(tree, off / tree.gates.square().sum(dim=1))
    return found


def of_layer(family: Family, seed: int) -> pd.DataFrame:
    """Means over a layer's trees: a row a quantity, a column a budget."""
    layer = Layer(family, seed)
    trees = [layer.tree() for _ in range(TREES)]
    found = {
        f"B = {budget}": pd.DataFrame(
            [losses(layer, tree, budget) for tree in trees]
        ).mean()
        for budget in BUDGETS
    }
    ran = np.mean([float((tree.gates > 0).any(dim=0).sum()) for tree in trees])
    rows = pd.DataFrame(found)
    rows.loc["experts that would run"] = float(ran)
    return rows


def summary(name: str, layers: int = LAYERS) -> pd.DataFrame:
    """Means over layers; rivals as their difference to the first, with an interval."""
    each = [of_layer(FAMILIES[name], seed) for seed in range(layers)]
    rows = sum(each[1:], each[0]) / layers
    shown = rows.map("{:.2f}".format)
    for first, rivals in (
        ("lost by gate", "lost by"),
        ("changed, own groups first", "changed"),
    ):
        for row in rows.index[rows.index.str.startswith(rivals)].drop(first):
            apart = np.array(
                [(own.loc[row] - own.loc[first]).to_numpy() for own in each]
            )
            shown.loc[row] = [_with_interval(column) for column in apart.T]
    return shown


def _with_interval(values: Floats) -> str:
    bootstrap = Bootstrap(len(values))
    found = bootstrap.estimate(bootstrap.sums(values[:, None])[0] / len(values))
    return f"{found.value:+.2f} ({found.low:+.2f}..{found.high:+.2f})"


@command
def main(arguments: Sequence[str]) -> int:
    """Print and write the summary of each family."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    found = pd.concat({name: summary(name) for name in FAMILIES}, names=["router", ""])
    found.to_csv(given.out)
    print(found.to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
