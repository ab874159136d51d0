"""The exact law of what speculative decoding emits, beside the target's own.

A batch of requests takes steps until each has `horizon` tokens. In a step every
request drafts a tree, the cut decides which nodes are verified, and acceptance emits
at least one token. All drafts and accept tests are enumerated in fractions, so that
the total variation from the target's law is zero or a bias, and never noise.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from evict_profile.lossless.accept import Emission, Kept, Verification
from evict_profile.lossless.cuts import Cut, Spent, State
from evict_profile.lossless.drafts import NO_DRAFT, ONE, Draft, Tree, draftings
from evict_profile.lossless.rules import Acceptance, Drafts, Score
from evict_profile.lossless.world import Tokens, World

Outputs = tuple[Tokens, ...]
Law = Mapping[Outputs, Fraction]


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
