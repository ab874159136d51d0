"""Draft trees: their shape, the law of their tokens, and the scores of their nodes.

A tree is a tuple of parents in drafting order, -1 for the root, which holds no token.
Sampled tokens are independent given their ancestors, siblings included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from evict_profile.lossless.rules import Drafts, Score
from evict_profile.lossless.world import Row, Tokens, World

ROOT = -1
ONE = Fraction(1)

Scores = tuple[Fraction, ...]


@dataclass(frozen=True)
class Tree:
    """The shape of a draft: each node's parent, parents before children."""

    parents: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many nodes may be verified."""
        return len(self.parents)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Each node's strict ancestors, from the top."""
        paths: list[tuple[int, ...]] = []
        for parent in self.parents:
            paths.append(() if parent == ROOT else (*paths[parent], parent))
        return tuple(paths)

    @property
    def levels(self) -> tuple[int, ...]:
        """The depth of each node, 1 under the root."""
        return tuple(1 + len(path) for path in self.paths)

    def children(self, node: int) -> tuple[int, ...]:
        """The children of a node, or of `ROOT`, elder first."""
        return tuple(k for k, parent in enumerate(self.parents) if parent == node)


CHAIN = Tree((-1, 0, 1))
FORK = Tree((-1, -1, 0))
LATE_FORK = Tree((-1, 0, 0))
TREES = (CHAIN, FORK, LATE_FORK)


@dataclass(frozen=True)
class Draft:
    """The tokens of a whole tree, their scores, and the probability of drafting it."""

    tokens: Tokens
    scores: Scores
    weight: Fraction


NO_DRAFT = Draft((), (), ONE)


def draftings(
    world: World, tree: Tree, drafts: Drafts, score: Score, prefix: Tokens
) -> list[Draft]:
    """Every draft of positive probability after a prefix."""
    found: list[tuple[Tokens, Fraction]] = [((), ONE)]
    for node in range(tree.size):
        found = [
            ((*tokens, token), weight * chance)
            for tokens, weight in found
            for token, chance in _choices(world, tree, drafts, prefix, tokens, node)
        ]
    return [
        Draft(tokens, score_nodes(world, tree, score, prefix, tokens), weight)
        for tokens, weight in found
    ]


def score_nodes(
    world: World, tree: Tree, score: Score, prefix: Tokens, tokens: Tokens
) -> Scores:
    """The score of each node, in drafting order; no child's exceeds its parent's."""
    rows = [world.q(prefix + along(tokens, path)) for path in tree.paths]
    if score == "max":
        return _products(tree, [max(row) for row in rows])
    own = _products(tree, [row[t] for row, t in zip(rows, tokens, strict=True)])
    if score == "own":
        return own
    return tuple(ONE if parent == ROOT else own[parent] for parent in tree.parents)


def along(tokens: Tokens, path: tuple[int, ...]) -> Tokens:
    """The tokens on a path of nodes."""
    return tuple(tokens[node] for node in path)


def _choices(
    world: World, tree: Tree, drafts: Drafts, prefix: Tokens, tokens: Tokens, node: int
) -> list[tuple[int, Fraction]]:
    """The tokens that a node may get, given the nodes before it."""
    row = world.q(prefix + along(tokens, tree.paths[node]))
    if drafts == "topk":
        rank = tree.children(tree.parents[node]).index(node)
        return [(_ranked(row)[rank], ONE)]
    return [(token, chance) for token, chance in enumerate(row) if chance]


def _ranked(row: Row) -> list[int]:
    return sorted(range(len(row)), key=lambda token: -row[token])


def _products(tree: Tree, factors: Sequence[Fraction]) -> Scores:
    products: list[Fraction] = []
    for parent, factor in zip(tree.parents, factors, strict=True):
        products.append(factor if parent == ROOT else products[parent] * factor)
    return tuple(products)
