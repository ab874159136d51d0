"""Toy worlds: what a target and a drafter give each token, in exact fractions."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product

Tokens = tuple[int, ...]
Row = tuple[Fraction, ...]
"""A law of the next token."""

ONE = Fraction(1)
ROOT = -1

MEMORY = 4
"""A row depends on that many tokens before it."""
WEIGHTS = (0, 0, 1, 1, 2, 3, 6, 9)


@dataclass(frozen=True, eq=False)
class ToyWorld:
    """What target and drafter give each token after each prefix."""

    target: Mapping[Tokens, Row]
    drafter: Mapping[Tokens, Row]

    @property
    def vocabulary(self):
        """The number of tokens; they are 0, 1, ..."""
        return len(self.drafter[()])

    def p(self, prefix):
        return self.target[prefix[-MEMORY:]]

    def q(self, prefix):
        return self.drafter[prefix[-MEMORY:]]


def seeded_world(rng, vocabulary):
    """A world with independent random rows after each prefix."""
    return ToyWorld(random_rows(rng, vocabulary), random_rows(rng, vocabulary))


COIN_WORLD = "p = (1/2, 1/2); q = (9/10, 1/10), but (1/2, 1/2) after a 1"
"""What `coin_world` holds, for readers."""


def coin_world():
    """The readable world: the target tosses a fair coin, the drafter bets on 0.

    After a 1 the drafter is fair too, so that its confidence tells what it drew.
    """
    fair, bet = (Fraction(1, 2),) * 2, (Fraction(9, 10), Fraction(1, 10))
    contexts = prefixes(2)
    drafter = {c: fair if c[-1:] == (1,) else bet for c in contexts}
    return ToyWorld(dict.fromkeys(contexts, fair), drafter)


def random_rows(rng, vocabulary):
    """A random row after each prefix: small weights, often zero, as shares."""
    rows = {}
    for prefix in prefixes(vocabulary):
        weights = rng.choices(WEIGHTS, k=vocabulary)
        if not any(weights):
            weights[rng.randrange(vocabulary)] = 1
        rows[prefix] = tuple(Fraction(weight, sum(weights)) for weight in weights)
    return rows


def prefixes(vocabulary):
    """All that a row may depend on."""
    lengths = range(MEMORY + 1)
    return [c for n in lengths for c in product(range(vocabulary), repeat=n)]


@dataclass(frozen=True)
class Tree:
    """The shape of a draft: each node's parent, parents before children."""

    parents: tuple[int, ...]

    @property
    def size(self):
        return len(self.parents)

    @cached_property
    def paths(self):
        """Each node's strict ancestors, from the top."""
        paths: list[tuple[int, ...]] = []
        for parent in self.parents:
            paths.append(() if parent == ROOT else (*paths[parent], parent))
        return tuple(paths)

    @property
    def levels(self):
        """The depth of each node, 1 under the root."""
        return tuple(1 + len(path) for path in self.paths)

    def children(self, node):
        """The children of a node, or of `ROOT`, elder first."""
        return tuple(k for k, parent in enumerate(self.parents) if parent == node)


CHAIN = Tree((-1, 0, 1))
FORK = Tree((-1, -1, 0))
LATE_FORK = Tree((-1, 0, 0))
TREES = (CHAIN, FORK, LATE_FORK)
