"""A toy mixture of experts, and budgets that all tokens of a step share.

Behind every prefix a router gives each expert a probability, and the k experts of
largest probability are run. The target's law of the next token is the mix of their
rows, each with its router's probability, normalised. A forward that lets only some
experts run mixes fewer of them, or others: that is all a budget can change here. There
is one layer, and what an expert says depends on tokens alone; see
docs/explanation/lossless.md for what that leaves out.

The tokens of a step are the root and the kept nodes of every request of the batch. What
one of them is verified against within a budget depends on the others: on the drafts, on
how many of them are verified, and on who else is served. Which experts run is decided
as in `runtime.budget`, of which this is the plain twin: of equals the one of lower
index comes first.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import TypeVar

from evict_profile.lossless.cuts import Kept
from evict_profile.lossless.enumeration import Decoding, Draft, Outputs, along
from evict_profile.lossless.world import (
    MEMORY,
    ONE,
    Row,
    Tokens,
    ToyWorld,
    prefixes,
    random_row,
    random_rows,
    shares,
)
from evict_profile.runtime.budget import Mode

ExpertSet = frozenset[int]

# A softmax gives nobody zero, and leaves ties to the lower index.
ROUTER_WEIGHTS = (1, 1, 2, 3, 6, 9)


def one_hot(row: Row) -> Row:
    """All probability on the most probable token, the first of equals."""
    top = row.index(max(row))
    return tuple(Fraction(token == top) for token in range(len(row)))


@dataclass(frozen=True)
class ToyLayer:
    """What there is behind one prefix.

    Attributes:
        router: the probability of each expert.
        rows: what each expert says of the next token.
        rest: what is said where no expert is run, by the model around the layer.
    """

    router: Row
    rows: tuple[Row, ...]
    rest: Row

    def mixed(self, run: ExpertSet) -> Row:
        """The law of the next token when these experts are run."""
        total = sum((self.router[e] for e in run), start=Fraction(0))
        if not total:
            return self.rest
        shares = {e: self.router[e] / total for e in run}
        return tuple(
            sum((share * self.rows[e][t] for e, share in shares.items()), Fraction(0))
            for t in range(len(self.rest))
        )


@dataclass(frozen=True, eq=False)
class MoeWorld(ToyWorld):
    """A world whose target mixes experts; `target` stays empty, `p` mixes all of them.

    At temperature zero (`cold`) its most probable token is certain, with whichever
    experts are run.
    """

    layers: Mapping[Tokens, ToyLayer]
    top_k: int
    cold: bool = False

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return len(self.layers[()].router)

    def p(self, prefix: Tokens) -> Row:
        everyone = frozenset(range(self.experts))
        return self._row(self.layer(prefix), everyone, "substitution")

    def layer(self, prefix: Tokens) -> ToyLayer:
        """The layer behind a prefix."""
        return self.layers[prefix[-MEMORY:]]

    def within(
        self, contexts: Iterable[Tokens], allowed: ExpertSet, mode: Mode
    ) -> ToyWorld:
        """What the target is in a forward over `contexts` that runs `allowed` alone."""
        rows = {c[-MEMORY:]: self._row(self.layer(c), allowed, mode) for c in contexts}
        return ToyWorld(rows, self.drafter)

    def _row(self, layer: ToyLayer, allowed: ExpertSet, mode: Mode) -> Row:
        row = layer.mixed(runs(layer.router, self.top_k, allowed, mode))
        return one_hot(row) if self.cold else row


def runs(router: Row, top_k: int, allowed: ExpertSet, mode: Mode) -> ExpertSet:
    """The experts that a token runs when only those `allowed` may."""
    among = allowed if mode == "substitution" else range(len(router))
    return largest(router, top_k, among) & allowed


def largest(values: Sequence[Fraction], count: int, among: Iterable[int]) -> ExpertSet:
    """The `count` of largest value, of equals the lower first."""
    return frozenset(sorted(among, key=lambda e: (-values[e], e))[:count])


def seeded_moe_world(
    rng: Random, vocabulary: int, experts: int, top_k: int
) -> MoeWorld:
    """A world with independent random layers after each prefix."""
    layers = {c: _random_layer(rng, vocabulary, experts) for c in prefixes(vocabulary)}
    return MoeWorld({}, random_rows(rng, vocabulary), layers, top_k)


def _random_layer(rng: Random, vocabulary: int, experts: int) -> ToyLayer:
    return ToyLayer(
        shares(tuple(rng.choices(ROUTER_WEIGHTS, k=experts))),
        tuple(random_row(rng, vocabulary) for _ in range(experts)),
        random_row(rng, vocabulary),
    )


@dataclass(frozen=True)
class RoutedToken:
    """What one token asks of the layer.

    Attributes:
        router: the probability of each expert.
        top_k: how many of them it would run.
        weight: the path probability of its node; 1 at the root.
    """

    router: Row
    top_k: int
    weight: Fraction

    @property
    def activated(self) -> ExpertSet:
        """The experts that it runs when all may run."""
        return largest(self.router, self.top_k, range(len(self.router)))


def activated(tokens: Sequence[RoutedToken]) -> ExpertSet:
    """The experts that the tokens run when all may run."""
    return frozenset[int]().union(*(token.activated for token in tokens))


@dataclass(frozen=True)
class ExpertBudget(ABC):
    """A rule for the experts that may run in a step."""

    mode: Mode

    @abstractmethod
    def allowed(self, tokens: Sequence[RoutedToken]) -> ExpertSet:
        """The experts that may run, from what all tokens of the step ask."""


@dataclass(frozen=True)
class Mass(ExpertBudget):
    """The `size` experts of most router probability, summed over tokens (MoE-Spec).

    With `by_path` each token counts with its path probability. With `by_run` its
    probabilities count of those experts alone that it would run. Where `size` is enough
    for whatever so many tokens could run, nothing gives way.
    """

    size: int
    by_path: bool = False
    by_run: bool = False

    def allowed(self, tokens: Sequence[RoutedToken]) -> ExpertSet:
        if sum(token.top_k for token in tokens) <= self.size:
            return activated(tokens)
        experts = range(len(tokens[0].router))
        mass = [Fraction(0)] * len(experts)
        for token in tokens:
            for e in token.activated if self.by_run else experts:
                mass[e] += token.router[e] * (token.weight if self.by_path else ONE)
        return largest(mass, self.size, experts)


@dataclass(frozen=True)
class AsActivated(ExpertBudget):
    """By mass, as many experts as the tokens would activate."""

    by_run: bool = False

    def allowed(self, tokens: Sequence[RoutedToken]) -> ExpertSet:
        size = len(activated(tokens))
        return Mass(self.mode, size, by_run=self.by_run).allowed(tokens)


@dataclass(frozen=True)
class Static(ExpertBudget):
    """The same experts in every step."""

    experts: ExpertSet

    def allowed(self, tokens: Sequence[RoutedToken]) -> ExpertSet:
        return self.experts


@dataclass(frozen=True)
class BudgetedDecoding(Decoding):
    """Decoding whose every step keeps to a budget."""

    worlds: tuple[MoeWorld, ...]
    budget: ExpertBudget

    @property
    def rule(self) -> str:
        return f"{self.cut}; {self.budget}"

    def verifiers(
        self, outputs: Outputs, drafts: tuple[Draft, ...], kept: tuple[Kept, ...]
    ) -> tuple[ToyWorld, ...]:
        forwards = list(map(self._contexts, outputs, drafts, kept))
        tokens = [
            RoutedToken(world.layer(context).router, world.top_k, weight)
            for world, contexts in zip(self.worlds, forwards, strict=True)
            for context, weight in contexts
        ]
        allowed = self.budget.allowed(tokens)
        return tuple(
            world.within([c for c, _ in contexts], allowed, self.budget.mode)
            for world, contexts in zip(self.worlds, forwards, strict=True)
        )

    def _contexts(
        self, prefix: Tokens, draft: Draft, kept: Kept
    ) -> list[tuple[Tokens, Fraction]]:
        """What each token of a request follows in a step, with its weight.

        None once the request has all that it was asked for: it has left the batch.
        """
        if len(prefix) == self.horizon:
            return []
        nodes = [
            (prefix + along(draft.tokens, (*self.tree.paths[k], k)), draft.scores[k])
            for k in sorted(kept)
        ]
        return [(prefix, ONE), *nodes]


W = TypeVar("W", ToyWorld, MoeWorld)


def cold(world: W) -> W:
    """The same world with the target's most probable token certain."""
    if isinstance(world, MoeWorld):
        return replace(world, cold=True)
    target = {prefix: one_hot(row) for prefix, row in world.target.items()}
    return replace(world, target=target)


def at_temperature_zero(decoding: Decoding) -> Decoding:
    return replace(decoding, worlds=tuple(map(cold, decoding.worlds)))
