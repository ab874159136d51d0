"""A claim about losslessness, and its settlement by enumeration.

A claim that is called lossless must show a total variation of exactly zero in every
trial, and one that is called biased must show a counterexample. Anything else means
that the classification or the enumeration is wrong, and is a defect of this package.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from random import Random

from evict_profile.lossless.law import (
    Decoding,
    Law,
    Outputs,
    marginal,
    target_law,
    total_variation,
)
from evict_profile.lossless.world import COIN_WORLD


class Contradiction(AssertionError):
    """The enumeration does not show what the classification says."""


@dataclass(frozen=True)
class Claim:
    """A classification, and trials that could refute it.

    `alone` compares the law of each request's output; otherwise all are taken
    together.
    """

    subject: str
    lossless: bool
    draw: Callable[[Random], Decoding]
    readable: Decoding | None = None
    alone: bool = False


@dataclass(frozen=True)
class Counterexample:
    """One way of decoding that is biased, and the output that shows it best."""

    seed: int | None
    vocabulary: int
    parents: tuple[int, ...]
    cut: str
    horizon: int
    tv: Fraction
    output: Outputs
    expected: Fraction
    got: Fraction

    @property
    def world(self) -> str:
        """What gives the tokens; only the readable world has no seed."""
        return COIN_WORLD if self.seed is None else f"random, of seed {self.seed}"

    def __str__(self) -> str:
        first, *others = (" ".join(map(str, tokens)) for tokens in self.output)
        together = "".join(f" with {tokens}" for tokens in others)
        return (
            f"{self.world}; drafts with parents {self.parents}; {self.cut}: "
            f"{first}{together} is emitted with probability {self.got}, "
            f"not {self.expected}"
        )

    def as_json(self) -> dict[str, object]:
        """Exact fractions as text, `tv` as a number too."""
        exact = {"tv": str(self.tv), "expected": str(self.expected)}
        numbers = {"got": str(self.got), "tv_value": float(self.tv)}
        return asdict(self) | {"world": self.world} | exact | numbers


@dataclass(frozen=True)
class Settlement:
    """What the trials of a claim showed."""

    worlds: int
    largest: Counterexample | None
    readable: Counterexample | None

    @property
    def max_tv(self) -> Fraction:
        """The largest total variation found."""
        return self.largest.tv if self.largest else Fraction(0)


def settle(claim: Claim, seeds: range) -> Settlement:
    """Enumerate a claim's trials.

    Raises:
        Contradiction: a lossless claim is biased in a trial, or a biased one in none.
    """
    found = [examine(claim.draw(Random(seed)), claim.alone, seed) for seed in seeds]
    readable = examine(claim.readable, claim.alone) if claim.readable else None
    biased = [example for example in (*found, readable) if example]
    if claim.lossless and biased:
        raise Contradiction(f"'{claim.subject}' is called lossless, but: {biased[0]}")
    if not claim.lossless and not biased:
        raise Contradiction(
            f"'{claim.subject}' is called biased, but {len(seeds)} trials are exact"
        )
    largest = max(biased, key=lambda example: example.tv, default=None)
    return Settlement(len(seeds), largest, readable)


def examine(
    decoding: Decoding, alone: bool = False, seed: int | None = None
) -> Counterexample | None:
    """The bias of one way of decoding; None where it is exact."""
    pairs = _laws(decoding, alone)
    law, expected = max(pairs, key=lambda pair: total_variation(*pair))
    tv = total_variation(law, expected)
    if not tv:
        return None
    zero = Fraction(0)
    gaps = {o: law.get(o, zero) - expected.get(o, zero) for o in law.keys() | expected}
    output = max(sorted(gaps), key=lambda o: abs(gaps[o]))
    return Counterexample(
        seed,
        decoding.worlds[0].vocabulary,
        decoding.tree.parents,
        decoding.rule,
        decoding.horizon,
        tv,
        output,
        expected.get(output, zero),
        law.get(output, zero),
    )


def _laws(decoding: Decoding, alone: bool) -> list[tuple[Law, Law]]:
    """The laws to compare: of what is emitted, and of the target's own output."""
    law, target = decoding.law(), target_law(decoding.worlds, decoding.horizon)
    if not alone:
        return [(law, target)]
    requests = range(len(decoding.worlds))
    return [(marginal(law, r), marginal(target, r)) for r in requests]
