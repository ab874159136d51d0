"""Toy worlds: a target p and a drafter q over two or three tokens, in fractions.

Rows depend on the whole prefix up to `MEMORY` tokens, so that nothing holds by a
symmetry of the world. Weights are small integers and often zero: sharp rows make a
bias large, and zeros try the corners of the accept test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from random import Random

Tokens = tuple[int, ...]
Row = tuple[Fraction, ...]

MEMORY = 4
WEIGHTS = (0, 0, 1, 1, 2, 3, 6, 9)


@dataclass(frozen=True, eq=False)
class World:
    """What target and drafter give each token after each prefix."""

    target: Mapping[Tokens, Row]
    drafter: Mapping[Tokens, Row]

    @property
    def vocabulary(self) -> int:
        """The number of tokens; they are 0, 1, ..."""
        return len(self.target[()])

    def p(self, prefix: Tokens) -> Row:
        """The target's law of the token after `prefix`."""
        return self.target[prefix[-MEMORY:]]

    def q(self, prefix: Tokens) -> Row:
        """The drafter's law of the token after `prefix`."""
        return self.drafter[prefix[-MEMORY:]]

    def at_temperature_zero(self) -> "World":
        """The same world with the target's most probable token certain."""
        return World({c: one_hot(row) for c, row in self.target.items()}, self.drafter)


def seeded_world(rng: Random, vocabulary: int) -> World:
    """A world with independent random rows after each prefix."""
    return World(random_rows(rng, vocabulary), random_rows(rng, vocabulary))


COIN_WORLD = "p = (1/2, 1/2); q = (9/10, 1/10), but (1/2, 1/2) after a 1"
"""What `coin_world` holds, for readers."""


def coin_world() -> World:
    """The readable world: the target tosses a fair coin, the drafter bets on 0.

    After a 1 the drafter is fair too, so that its confidence tells what it drew.
    """
    fair, bet = (Fraction(1, 2),) * 2, (Fraction(9, 10), Fraction(1, 10))
    contexts = prefixes(2)
    drafter = {c: fair if c[-1:] == (1,) else bet for c in contexts}
    return World(dict.fromkeys(contexts, fair), drafter)


def one_hot(row: Row) -> Row:
    """All probability on the most probable token, the first of equals."""
    top = row.index(max(row))
    return tuple(Fraction(token == top) for token in range(len(row)))


def random_rows(rng: Random, vocabulary: int) -> dict[Tokens, Row]:
    """A random row after each prefix."""
    return {prefix: random_row(rng, vocabulary) for prefix in prefixes(vocabulary)}


def random_row(rng: Random, vocabulary: int) -> Row:
    """Small weights, often zero, as shares."""
    weights = rng.choices(WEIGHTS, k=vocabulary)
    if not any(weights):
        weights[rng.randrange(vocabulary)] = 1
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


def prefixes(vocabulary: int) -> list[Tokens]:
    """All that a row may depend on."""
    lengths = range(MEMORY + 1)
    return [c for n in lengths for c in product(range(vocabulary), repeat=n)]
