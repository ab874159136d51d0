"""What one request emits, given its draft and which nodes of it are verified.

The walk starts at the root. Target-only acceptance samples x ~ p and goes on while a
kept child holds x; "match" is the same law. Rejection tests the kept children of a
node in order, each against what p has left after the earlier ones (SpecInfer); with
none accepted it emits from the rest, which is p itself where no child is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from evict_profile.lossless.drafts import ONE, ROOT, Tree
from evict_profile.lossless.rules import Acceptance
from evict_profile.lossless.world import Row, Tokens, World

Kept = frozenset[int]
Emission = tuple[Tokens, Fraction]


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
