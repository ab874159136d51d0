"""The exact law of what speculative decoding emits, beside the target's own.

A toy world gives a target p and a drafter q over two or three tokens, in fractions. A
batch of requests takes steps until each has `horizon` tokens: every request drafts a
tree, the cut decides which nodes are verified, and acceptance emits at least one token.
All drafts and accept tests are enumerated, so that the total variation from the
target's law is zero or a bias, and never noise.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod
from random import Random

from evict_profile.lossless.rules import Acceptance, Drafts, Score

Tokens = tuple[int, ...]
Row = tuple[Fraction, ...]
Scores = tuple[Fraction, ...]
Batch = tuple[Scores, ...]
State = tuple[Fraction, ...]
Kept = frozenset[int]
Emission = tuple[Tokens, Fraction]
Outputs = tuple[Tokens, ...]
Law = Mapping[Outputs, Fraction]

ROOT = -1
ONE = Fraction(1)

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


@dataclass(frozen=True)
class Spent:
    """What a cut may remember of a step: its scores, what it kept, what came out."""

    scores: Batch
    kept: tuple[Kept, ...]
    emitted: int


class Cut(ABC):
    """A truncation rule; subclasses are dataclasses of its constants."""

    def __str__(self) -> str:
        constants = ", ".join(f"{k} {_plain_text(v)}" for k, v in vars(self).items())
        return f"{type(self).__name__}: {constants}"

    @property
    def start(self) -> State:
        """The state before the first step; most rules have none."""
        return ()

    @abstractmethod
    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        """The nodes of each request that are verified."""

    def after(self, state: State, spent: Spent) -> State:
        """The state after a step."""
        return state


@dataclass(frozen=True)
class Verification:
    """A drafted tree behind a prefix, with the nodes of it that are verified."""

    world: World
    tree: Tree
    acceptance: Acceptance
    tokens: Tokens
    kept: Kept

    def emissions(self, prefix: Tokens, limit: int) -> list[Emission]:
        """What may be emitted, at most `limit` tokens of it, with probabilities."""
        return list(self._from(ROOT, prefix, limit))

    def _from(self, node: int, prefix: Tokens, limit: int) -> Iterator[Emission]:
        if limit == 0:
            yield (), ONE
            return
        for child, token, chance in self._moves(node, prefix):
            if child is None:
                yield (token,), chance
                continue
            for rest, then in self._from(child, (*prefix, token), limit - 1):
                yield (token, *rest), chance * then

    def _moves(
        self, node: int, prefix: Tokens
    ) -> Iterator[tuple[int | None, int, Fraction]]:
        """The child that the walk goes to, if any, the token emitted, the chance."""
        kept = [k for k in self.tree.children(node) if k in self.kept]
        p, q = self.world.p(prefix), self.world.q(prefix)
        if self.acceptance == "rejection":
            yield from self._tested(kept, p, q)
        else:
            yield from self._sampled(kept, p)

    def _sampled(
        self, kept: list[int], p: Row
    ) -> Iterator[tuple[int | None, int, Fraction]]:
        holders = {self.tokens[k]: k for k in reversed(kept)}
        for token, chance in enumerate(p):
            if chance:
                yield holders.get(token), token, chance

    def _tested(
        self, kept: list[int], p: Row, q: Row
    ) -> Iterator[tuple[int | None, int, Fraction]]:
        reached = ONE
        for child in kept:
            token = self.tokens[child]
            accepted = accept_chance(p[token], q[token])
            if accepted:
                yield child, token, reached * accepted
            reached *= ONE - accepted
            if not reached:
                return
            p = residual(p, q)
        for token, chance in enumerate(p):
            if chance:
                yield None, token, reached * chance


def accept_chance(p: Fraction, q: Fraction) -> Fraction:
    """min(1, p/q); a token that the target never emits is never accepted."""
    return min(ONE, p / q) if q else Fraction(p > 0)


def residual(p: Row, q: Row) -> Row:
    """norm(max(p - q, 0)), what is left of p after a rejected token of q.

    Where p = q nothing is left. No token drawn from q is rejected there; one of
    probability zero, which only a top-k tree holds, leaves p as it is.
    """
    rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    total = sum(rest)
    return tuple(a / total for a in rest) if total else p


@dataclass(frozen=True)
class Ending:
    """One way in which a step ends: outputs and state after it, and the chance."""

    outputs: Outputs
    state: State
    weight: Fraction


@dataclass(frozen=True)
class Decoding:
    """All that fixes the law: one world per request, and how they are decoded."""

    worlds: tuple[World, ...]
    tree: Tree
    drafts: Drafts
    acceptance: Acceptance
    score: Score
    cut: Cut
    horizon: int

    @property
    def rule(self) -> str:
        """What decides over the drafts, with its constants."""
        return str(self.cut)

    def law(self) -> Law:
        """The joint law of the first `horizon` tokens of every request."""
        empty: Outputs = ((),) * len(self.worlds)
        # A step makes outputs longer, so that taking them by length meets each pair
        # of outputs and state once, with all of its probability.
        reached: list[dict[tuple[Outputs, State], Fraction]] = [
            defaultdict(Fraction) for _ in range(self.horizon * len(empty) + 1)
        ]
        reached[0][empty, self.cut.start] = ONE
        for layer in reached[:-1]:
            for (outputs, state), mass in layer.items():
                for end in self.step(outputs, state):
                    length = sum(map(len, end.outputs))
                    reached[length][end.outputs, end.state] += mass * end.weight
        law: dict[Outputs, Fraction] = defaultdict(Fraction)
        for (outputs, _), mass in reached[-1].items():
            law[outputs] += mass
        return law

    def step(self, outputs: Outputs, state: State) -> Iterator[Ending]:
        """Every way in which one step of the whole batch can end."""
        for drafts in product(*map(self._drafts, self.worlds, outputs)):
            scores = tuple(draft.scores for draft in drafts)
            kept = self.cut.keep(scores, state)
            drafted = prod((draft.weight for draft in drafts), start=ONE)
            worlds = self.verifiers(outputs, drafts, kept)
            emissions = map(self._emissions, worlds, outputs, drafts, kept)
            for emitted in product(*emissions):
                tokens = tuple(part for part, _ in emitted)
                spent = Spent(scores, kept, sum(map(len, tokens)))
                yield Ending(
                    tuple(map(tuple.__add__, outputs, tokens)),
                    self.cut.after(state, spent),
                    prod((chance for _, chance in emitted), start=drafted),
                )

    def verifiers(
        self, outputs: Outputs, drafts: tuple[Draft, ...], kept: tuple[Kept, ...]
    ) -> tuple[World, ...]:
        """What the tokens of each request are verified against in a step."""
        return self.worlds

    def _drafts(self, world: World, prefix: Tokens) -> list[Draft]:
        """A request that has all its tokens has left the batch and drafts nothing."""
        if len(prefix) == self.horizon:
            return [NO_DRAFT]
        return draftings(world, self.tree, self.drafts, self.score, prefix)

    def _emissions(
        self, world: World, prefix: Tokens, draft: Draft, kept: Kept
    ) -> list[Emission]:
        verified = Verification(world, self.tree, self.acceptance, draft.tokens, kept)
        return verified.emissions(prefix, self.horizon - len(prefix))


def target_law(worlds: tuple[World, ...], horizon: int) -> Law:
    """The law of plain decoding: requests are independent, each token is ~ p."""
    each = [_plain(world, horizon) for world in worlds]
    return {
        tuple(tokens for tokens, _ in one): prod((c for _, c in one), start=ONE)
        for one in product(*each)
    }


def marginal(law: Law, request: int) -> Law:
    """The law of one request's output."""
    found: dict[Outputs, Fraction] = defaultdict(Fraction)
    for outputs, chance in law.items():
        found[outputs[request : request + 1]] += chance
    return found


def total_variation(law: Law, other: Law) -> Fraction:
    """Half the sum of absolute differences."""
    outputs = law.keys() | other.keys()
    gaps = (abs(law.get(o, Fraction(0)) - other.get(o, Fraction(0))) for o in outputs)
    return sum(gaps, start=Fraction(0)) / 2


def _plain(world: World, horizon: int) -> list[Emission]:
    law: list[Emission] = [((), ONE)]
    for _ in range(horizon):
        law = [
            ((*prefix, token), mass * chance)
            for prefix, mass in law
            for token, chance in enumerate(world.p(prefix))
            if chance
        ]
    return law


def _plain_text(value: Fraction | int | tuple[Fraction | int, ...]) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
