"""The audit: every classification beside its exact enumeration.

`rules` classifies from a theorem; here each verdict has to survive trials in which it
could fail. A claim that is called lossless must show a total variation of exactly zero
in every trial, and one that is called biased must show a counterexample. Anything else
means that the classification or the enumeration is wrong, and is a defect of this
package.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from evict_profile.lossless.rules import Classification, Combination, classify
from tests.lossless.proof.enumeration import (
    Decoding,
    Outputs,
    marginal,
    target_law,
    total_variation,
)
from tests.lossless.proof.trials import draw_decoding, readable
from tests.lossless.proof.world import COIN_WORLD

TRIALS = 96
Trials = Mapping[int | None, Decoding]
"""Ways of decoding by the seed that draws them."""


class Contradiction(AssertionError):
    """The enumeration does not show what the classification says."""


class Counterexample(Struct, frozen=True):
    """One way of decoding that is biased, and the output that shows it best.

    `world` says what gives the tokens; only the readable world has no seed. Fractions
    are exact in JSON, as text.
    """

    seed: int | None
    vocabulary: int
    parents: tuple[int, ...]
    cut: str
    horizon: int
    tv: Fraction
    output: Outputs
    expected: Fraction
    got: Fraction
    world: str
    tv_value: float


@dataclass(frozen=True)
class Audit:
    """A verdict with every counterexample that the enumeration showed."""

    combination: Combination
    verdict: Classification
    examples: tuple[Counterexample, ...]

    @property
    def max_tv(self) -> Fraction:
        return largest_tv(self.examples)

    @property
    def readable(self) -> Counterexample | None:
        """The counterexample that can be checked by hand."""
        return next((each for each in self.examples if each.seed is None), None)


def audit(combination: Combination) -> Audit:
    """Classify a combination, and prove or show it in exact trials."""
    accept, score = combination.acceptance, combination.score
    alike = replace(
        combination,
        acceptance="target-only" if accept == "match" else accept,
        score="own" if combination.rule == "fixed" else score,
    )
    return Audit(combination, classify(combination), _settled(alike))


@lru_cache
def _settled(combination: Combination) -> tuple[Counterexample, ...]:
    """The counterexamples of all combinations that decode like this one."""
    lossless = classify(combination).lossless
    return settle(str(combination), lossless, trials(combination, TRIALS))


def trials(combination: Combination, count: int) -> Trials:
    """Decodings that could refute a classification; the readable one has no seed."""
    drawn: Trials = {
        seed: draw_decoding(combination, Random(seed)) for seed in range(count)
    }
    return {**drawn, None: readable(combination)}


def settle(
    subject: str, lossless: bool, trials: Trials, alone: bool = False
) -> tuple[Counterexample, ...]:
    """Enumerate the trials of a claim; every one that is biased.

    `alone` compares the law of each request's output; otherwise all are taken together.
    """
    found = (examine(decoding, alone, seed) for seed, decoding in trials.items())
    biased = tuple(filter(None, found))
    if lossless and biased:
        raise Contradiction(f"'{subject}' is called lossless, but: {biased[0]}")
    if not lossless and not biased:
        raise Contradiction(
            f"'{subject}' is called biased, but {len(trials)} trials are exact"
        )
    return biased


def largest_tv(examples: Iterable[Counterexample]) -> Fraction:
    """The largest total variation; 0 where nothing is biased."""
    return max((example.tv for example in examples), default=Fraction(0))


def examine(
    decoding: Decoding, alone: bool = False, seed: int | None = None
) -> Counterexample | None:
    """The bias of one way of decoding; None where it is exact."""
    law, expected = decoding.law(), target_law(decoding.worlds, decoding.horizon)
    if alone:
        requests = range(len(decoding.worlds))
        pairs = [(marginal(law, r), marginal(expected, r)) for r in requests]
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
        str(decoding.cut),
        decoding.horizon,
        tv,
        output,
        expected.get(output, zero),
        law.get(output, zero),
        COIN_WORLD if seed is None else f"random, of seed {seed}",
        float(tv),
    )
