"""Expert budgets: all tokens of a step share the few experts that may run.

The tokens of a step are the root and the kept nodes of every request of the batch.
What one of them is verified against then depends on the others: on the drafts, on how
many of them are verified, and on who else is served.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from evict_profile.lossless.accept import Kept
from evict_profile.lossless.drafts import ONE, Draft, along
from evict_profile.lossless.experts import Experts, Mode, MoeWorld, best
from evict_profile.lossless.law import Decoding, Outputs
from evict_profile.lossless.world import Row, Tokens, World


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
