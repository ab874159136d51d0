"""A toy mixture of experts, and budgets that all tokens of a step share.

Behind every prefix a router gives each expert a probability, and the k experts of
largest probability are run. The target's law of the next token is the mix of their
rows, each with its router's probability, brought to sum to 1. A forward that lets only
some experts run mixes fewer of them, or others: that is all a budget can change here.
There is one layer, and what an expert says depends on tokens alone; see
docs/explanation/lossless.md for what that leaves out.

The tokens of a step are the root and the kept nodes of every request of the batch. What
one of them is verified against within a budget depends on the others: on the drafts, on
how many of them are verified, and on who else is served. Which experts run is decided
as in `runtime.budget`, of which this is the plain twin: wherever two are equal the one
of lower index stands first.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Literal, get_args

from evict_profile.lossless.enumeration import (
    MEMORY,
    ONE,
    Decoding,
    Draft,
    Kept,
    Outputs,
    Row,
    Tokens,
    World,
    along,
    one_hot,
    prefixes,
    random_row,
    random_rows,
)

Experts = frozenset[int]
Mode = Literal["substitution", "truncation"]
"""Whether a token takes its next best expert for one that may not run, or none."""

MODES: tuple[Mode, ...] = get_args(Mode)

# A softmax gives nobody zero, and leaves ties to the lower index.
ROUTER_WEIGHTS = (1, 1, 2, 3, 6, 9)


@dataclass(frozen=True)
class Layer:
    """What there is behind one prefix.

    Attributes:
        router: the probability of each expert.
        rows: what each expert says of the next token.
        rest: what is said where no expert is run, by the model around the layer.
    """

    router: Row
    rows: tuple[Row, ...]
    rest: Row

    def mixed(self, run: Experts) -> Row:
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
class MoeWorld(World):
    """A world whose target is a mixture of experts; `target` is it without a budget.

    At temperature zero (`cold`) its most probable token is certain, with whichever
    experts are run.
    """

    layers: Mapping[Tokens, Layer]
    top_k: int
    cold: bool = False

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return len(self.layers[()].router)

    def layer(self, prefix: Tokens) -> Layer:
        """The layer behind a prefix."""
        return self.layers[prefix[-MEMORY:]]

    def within(self, contexts: Iterable[Tokens], kept: Experts, mode: Mode) -> World:
        """What the target is in a forward over `contexts` that runs `kept` alone."""
        rows = {c[-MEMORY:]: self._row(self.layer(c), kept, mode) for c in contexts}
        return World(rows, self.drafter)

    def at_temperature_zero(self) -> "MoeWorld":
        target = {c: one_hot(row) for c, row in self.target.items()}
        return replace(self, target=target, cold=True)

    def _row(self, layer: Layer, kept: Experts, mode: Mode) -> Row:
        row = layer.mixed(runs(layer.router, self.top_k, kept, mode))
        return one_hot(row) if self.cold else row


def runs(router: Row, top_k: int, kept: Experts, mode: Mode) -> Experts:
    """The experts that a token runs when only those `kept` may."""
    among = kept if mode == "substitution" else range(len(router))
    return best(router, top_k, among) & kept


def best(values: Sequence[Fraction], count: int, among: Iterable[int]) -> Experts:
    """The `count` of largest value, of equals the lower first."""
    return frozenset(sorted(among, key=lambda e: (-values[e], e))[:count])


def moe_world(
    layers: Mapping[Tokens, Layer], drafter: Mapping[Tokens, Row], top_k: int
) -> MoeWorld:
    """A world of these layers, with its target when all experts may run."""
    everyone = frozenset(range(len(layers[()].router)))
    target = {
        c: layer.mixed(best(layer.router, top_k, everyone))
        for c, layer in layers.items()
    }
    return MoeWorld(target, drafter, layers, top_k)


def seeded_moe_world(
    rng: Random, vocabulary: int, experts: int, top_k: int
) -> MoeWorld:
    """A world with independent random layers after each prefix."""
    layers = {c: _random_layer(rng, vocabulary, experts) for c in prefixes(vocabulary)}
    return moe_world(layers, random_rows(rng, vocabulary), top_k)


def _random_layer(rng: Random, vocabulary: int, experts: int) -> Layer:
    wants = rng.choices(ROUTER_WEIGHTS, k=experts)
    return Layer(
        tuple(Fraction(want, sum(wants)) for want in wants),
        tuple(random_row(rng, vocabulary) for _ in range(experts)),
        random_row(rng, vocabulary),
    )


@dataclass(frozen=True)
class Wish:
    """What one token asks of the layer.

    Attributes:
        router: the probability of each expert.
        top_k: how many of them it would run.
        weight: the path probability of its node; 1 at the root.
    """

    router: Row
    top_k: int
    weight: Fraction


@dataclass(frozen=True)
class Budget(ABC):
    """A rule for the experts that may run in a step."""

    mode: Mode

    @abstractmethod
    def keep(self, wishes: Sequence[Wish]) -> Experts:
        """The experts that may run, from what all tokens of the step ask."""


@dataclass(frozen=True)
class Mass(Budget):
    """The `size` experts of most router probability, summed over tokens (MoE-Spec).

    With `by_path` each token counts with its path probability. With `by_run` its
    probabilities count of those experts alone that it would run. Where `size` is enough
    for whatever so many tokens could run, nothing gives way.
    """

    size: int
    by_path: bool = False
    by_run: bool = False

    def keep(self, wishes: Sequence[Wish]) -> Experts:
        if sum(wish.top_k for wish in wishes) <= self.size:
            return woken(wishes)
        return most_wanted(wishes, self.size, self.by_path, self.by_run)


@dataclass(frozen=True)
class AsWoken(Budget):
    """By mass, as many experts as the tokens would wake."""

    by_run: bool = False

    def keep(self, wishes: Sequence[Wish]) -> Experts:
        size = len(woken(wishes))
        return Mass(self.mode, size, by_run=self.by_run).keep(wishes)


@dataclass(frozen=True)
class Static(Budget):
    """The same experts in every step."""

    kept: Experts

    def keep(self, wishes: Sequence[Wish]) -> Experts:
        return self.kept


@dataclass(frozen=True)
class BudgetedDecoding(Decoding):
    """Decoding whose every step keeps to a budget."""

    worlds: tuple[MoeWorld, ...]
    budget: Budget

    @property
    def rule(self) -> str:
        return f"{self.cut}; {self.budget}"

    def verifiers(
        self, outputs: Outputs, drafts: tuple[Draft, ...], kept: tuple[Kept, ...]
    ) -> tuple[World, ...]:
        forwards = list(map(self._tokens, outputs, drafts, kept))
        wishes = [
            Wish(world.layer(context).router, world.top_k, weight)
            for world, tokens in zip(self.worlds, forwards, strict=True)
            for context, weight in tokens
        ]
        may_run = self.budget.keep(wishes)
        return tuple(
            world.within((context for context, _ in tokens), may_run, self.budget.mode)
            for world, tokens in zip(self.worlds, forwards, strict=True)
        )

    def _tokens(
        self, prefix: Tokens, draft: Draft, kept: Kept
    ) -> list[tuple[Tokens, Fraction]]:
        """The tokens of a request in a step, each as what it follows, with its weight.

        None once the request has all that it was asked for: it has left the batch.
        """
        if len(prefix) == self.horizon:
            return []
        nodes = [
            (prefix + along(draft.tokens, (*self.tree.paths[k], k)), draft.scores[k])
            for k in sorted(kept)
        ]
        return [(prefix, ONE), *nodes]


def most_wanted(
    wishes: Sequence[Wish], size: int, by_path: bool, by_run: bool
) -> Experts:
    """The `size` experts of most router probability over all tokens."""
    experts = range(len(wishes[0].router))
    mass = [Fraction(0)] * len(experts)
    for wish in wishes:
        for e in best(wish.router, wish.top_k, experts) if by_run else experts:
            mass[e] += wish.router[e] * (wish.weight if by_path else ONE)
    return best(mass, size, experts)


def woken(wishes: Sequence[Wish]) -> Experts:
    """The experts that the tokens run when all may run."""
    each = (best(w.router, w.top_k, range(len(w.router))) for w in wishes)
    return frozenset[int]().union(*each)
