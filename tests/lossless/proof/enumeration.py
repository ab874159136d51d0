"""The exact law of what speculative decoding emits, beside the target's own.

A batch of requests takes steps until each has `horizon` tokens: every request drafts a
tree, the cut decides which nodes are verified, and acceptance emits at least one token.
All drafts and accept tests are enumerated, so that the total variation from the
target's law is zero or a bias, and never noise.
"""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

from evict_profile.lossless import Acceptance, Drafts, Score
from tests.lossless.proof.cuts import Cut, Kept, Scores, Spent
from tests.lossless.proof.world import ONE, ROOT, Tokens, ToyWorld, Tree


class Draft(NamedTuple):
    """The tokens of a whole tree, their scores, and the probability of drafting it."""

    tokens: Tokens
    scores: Scores
    weight: Fraction


def draftings(world, tree, drafts, score, prefix):
    """Every draft of positive probability after a prefix."""

    def row(tokens, path):
        return world.q(prefix + tuple(tokens[node] for node in path))

    def scores_of(tokens):
        """No child's score exceeds its parent's."""
        products: list[Fraction] = []
        nodes = zip(tree.parents, tree.paths, tokens, strict=True)
        for parent, path, token in nodes:
            chances = row(tokens, path)
            factor = max(chances) if score == "max" else chances[token]
            products.append(factor if parent == ROOT else products[parent] * factor)
        if score != "shifted":
            return tuple(products)
        return tuple(ONE if k == ROOT else products[k] for k in tree.parents)

    found = [((), ONE)]
    for node, path in enumerate(tree.paths):
        rank = tree.children(tree.parents[node]).index(node)
        found = [
            ((*tokens, token), weight * chance)
            for tokens, weight in found
            for token, chance in _choices(row(tokens, path), drafts, rank)
        ]
    return [Draft(tokens, scores_of(tokens), weight) for tokens, weight in found]


def _choices(row, drafts, rank):
    """The tokens that a node may get, and the chance of each."""
    if drafts == "topk":
        ranked = sorted(range(len(row)), key=lambda token: -row[token])
        return [(ranked[rank], ONE)]
    return [(token, chance) for token, chance in enumerate(row) if chance]


@dataclass(frozen=True)
class Verification:
    """A drafted tree behind a prefix, with the nodes of it that are verified."""

    world: ToyWorld
    tree: Tree
    acceptance: Acceptance
    tokens: Tokens
    kept: Kept

    def emissions(self, prefix, limit, node=ROOT):
        """What may be emitted from a node on, at most `limit` tokens of it."""
        if limit == 0:
            yield (), ONE
            return
        for child, token, chance in self._moves(node, prefix):
            if not chance:
                continue
            if child is None:
                yield (token,), chance
                continue
            for rest, then in self.emissions((*prefix, token), limit - 1, child):
                yield (token, *rest), chance * then

    def _moves(self, node, prefix):
        """The child that the walk goes to, if any, the token emitted, the chance."""
        kept = [k for k in self.tree.children(node) if k in self.kept]
        rest, reached = self.world.p(prefix), ONE
        followed: dict[int, int] = {}
        if self.acceptance == "rejection":
            q = self.world.q(prefix)
            for child in kept:
                token = self.tokens[child]
                accepted = accept_chance(rest[token], q[token])
                yield child, token, reached * accepted
                reached *= ONE - accepted
                rest = residual(rest, q)
        else:
            followed = {self.tokens[k]: k for k in reversed(kept)}
        for token, chance in enumerate(rest):
            yield followed.get(token), token, reached * chance


def accept_chance(p, q):
    """min(1, p/q); a token that the target never emits is never accepted."""
    return min(ONE, p / q) if q else Fraction(p > 0)


def residual(p, q):
    """norm(max(p - q, 0)), what is left of p after a rejected token of q.

    Where p = q nothing is left. No token drawn from q is rejected there; one of
    probability zero, which only a top-k tree holds, leaves p as it is.
    """
    rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    total = sum(rest)
    return tuple(a / total for a in rest) if total else p


@dataclass(frozen=True)
class Decoding:
    """All that fixes the law: one world per request, and how they are decoded."""

    worlds: tuple[ToyWorld, ...]
    tree: Tree
    drafts: Drafts
    acceptance: Acceptance
    score: Score
    cut: Cut
    horizon: int

    def law(self):
        """The joint law of the first `horizon` tokens of every request, by outputs."""
        empty = ((),) * len(self.worlds)
        # A step makes outputs longer, so that taking them by length meets each pair
        # of outputs and state once, with all of its probability.
        lengths = range(self.horizon * len(empty) + 1)
        reached = [defaultdict(Fraction) for _ in lengths]
        reached[0][empty, self.cut.start] = ONE
        for by_length in reached[:-1]:
            for (outputs, state), mass in by_length.items():
                for longer, then, chance in self.step(outputs, state):
                    reached[sum(map(len, longer))][longer, then] += mass * chance
        law = defaultdict(Fraction)
        for (outputs, _), mass in reached[-1].items():
            law[outputs] += mass
        return law

    def step(self, outputs, state):
        """Every way in which one step of the whole batch can end, with its chance."""
        for drafts in product(*map(self._drafts, self.worlds, outputs)):
            scores = tuple(draft.scores for draft in drafts)
            kept = self.cut.keep(scores, state)
            drafted = prod((draft.weight for draft in drafts), start=ONE)
            emissions = map(self._emit, self.worlds, outputs, drafts, kept)
            for emitted in product(*emissions):
                tokens = tuple(part for part, _ in emitted)
                spent = Spent(scores, kept, sum(map(len, tokens)))
                yield (
                    tuple(map(tuple.__add__, outputs, tokens)),
                    self.cut.after(state, spent),
                    prod((chance for _, chance in emitted), start=drafted),
                )

    def _drafts(self, world, prefix):
        """A request that has all its tokens has left the batch and drafts nothing."""
        if len(prefix) == self.horizon:
            return [Draft((), (), ONE)]
        return draftings(world, self.tree, self.drafts, self.score, prefix)

    def _emit(self, world, prefix, draft, kept):
        verified = Verification(world, self.tree, self.acceptance, draft.tokens, kept)
        return verified.emissions(prefix, self.horizon - len(prefix))


def target_law(worlds, horizon):
    """The law of plain decoding: requests are independent, each token is ~ p."""
    law = {((),) * len(worlds): ONE}
    for request, world in list(enumerate(worlds)) * horizon:
        law = {
            (*out[:request], (*out[request], token), *out[request + 1 :]): mass * chance
            for out, mass in law.items()
            for token, chance in enumerate(world.p(out[request]))
            if chance
        }
    return law


def marginal(law, request):
    found = defaultdict(Fraction)
    for outputs, chance in law.items():
        found[outputs[request : request + 1]] += chance
    return found


def total_variation(law, other):
    """Half the sum of absolute differences."""
    outputs = law.keys() | other.keys()
    gaps = (abs(law.get(o, Fraction(0)) - other.get(o, Fraction(0))) for o in outputs)
    return sum(gaps, start=Fraction(0)) / 2
