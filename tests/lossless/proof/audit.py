"""The audit: every classification beside its exact enumeration.

`rules` classifies from a theorem; here each verdict has to survive trials in which it
could fail. A claim that is called lossless must show a total variation of exactly zero
in every trial, and one that is called biased must show a counterexample. Anything else
means that the classification or the enumeration is wrong, and is a defect of this
package.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from random import Random

from msgspec.structs import astuple, replace

from evict_profile.lossless import (
    ACCEPTANCES,
    DRAFTS,
    RULES,
    SCORES,
    Classification,
    Combination,
    classify,
)
from tests.lossless.proof.enumeration import marginal, target_law, total_variation
from tests.lossless.proof.trials import draw_decoding, readable
from tests.lossless.proof.world import COIN_WORLD

WORLDS = 96
COMBINATIONS = [
    Combination(*words) for words in product(DRAFTS, ACCEPTANCES, RULES, SCORES)
]


@dataclass(frozen=True)
class Counterexample:
    """The output with the largest bias. The readable world alone has no seed."""

    seed: int | None
    parents: tuple[int, ...]
    cut: str
    tv: Fraction
    output: tuple[tuple[int, ...], ...]
    expected: Fraction
    got: Fraction
    world: str

    def __str__(self):
        tokens = " with ".join(" ".join(map(str, own)) for own in self.output)
        return (
            f"{self.world}; drafts with parents {self.parents}; {self.cut}: "
            f"{tokens} is emitted with probability {self.got}, not {self.expected}"
        )


@dataclass(frozen=True)
class Audit:
    """A verdict, and what the trials found."""

    combination: Combination
    verdict: Classification
    largest: Counterexample | None
    readable: Counterexample | None

    @property
    def max_tv(self):
        return self.largest.tv if self.largest else Fraction(0)


class Contradiction(AssertionError):
    """The enumeration does not show what the classification says."""


def audit(combination):
    """Classify a combination, and prove or show it in exact trials."""
    accept, score = combination.acceptance, combination.score
    alike = replace(
        combination,
        acceptance="target-only" if accept == "match" else accept,
        score="own" if combination.rule == "fixed" else score,
    )
    biased = _settled(alike)
    by_hand = next((each for each in biased if each.seed is None), None)
    return Audit(combination, classify(combination), largest(biased), by_hand)


@lru_cache
def _settled(combination):
    """The counterexamples of all combinations that decode like this one."""
    lossless = classify(combination).lossless
    return settle(str(combination), lossless, trials(combination, WORLDS))


def trials(combination, count):
    """Decodings that could refute a classification; the readable one has no seed."""
    drawn = {seed: draw_decoding(combination, Random(seed)) for seed in range(count)}
    return {**drawn, None: readable(combination)}


def settle(subject, lossless, trials, alone=False):
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


def largest(biased):
    """The counterexample of the largest total variation, if there is one."""
    return max(biased, key=lambda each: each.tv, default=None)


def examine(decoding, alone=False, seed=None):
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
        seed=seed,
        parents=decoding.tree.parents,
        cut=str(decoding.cut),
        tv=tv,
        output=output,
        expected=expected.get(output, zero),
        got=law.get(output, zero),
        world=COIN_WORLD if seed is None else f"random, of seed {seed}",
    )


def summary(audits):
    """Combinations by reason, with the largest total variation.

    Each biased rule and score on sampled drafts is a line of its own.
    """
    groups = {}
    for each in audits:
        words, verdict = each.combination, each.verdict
        by_reason = verdict.lossless or words.drafts == "topk"
        key = (verdict.why,) if by_reason else (words.rule, words.score)
        groups.setdefault(key, []).append(each)
    return [
        (
            _joint_name([each.combination for each in group]),
            max(each.max_tv for each in group),
        )
        for group in groups.values()
    ]


def _joint_name(combinations):
    drafts, acceptance, rule, score = (
        every
        if {*used} == {*known}
        else " or ".join(word for word in known if word in used)
        for used, known, every in zip(
            zip(*map(astuple, combinations), strict=True),
            (DRAFTS, ACCEPTANCES, RULES, SCORES),
            ("any", "any", "any rule", "any score"),
            strict=True,
        )
    )
    return f"{drafts} drafts, {acceptance}, {rule}, {score}"
