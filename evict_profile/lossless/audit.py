"""The audit: every classification beside its exact enumeration.

`rules` classifies from a theorem; here each verdict has to survive trials in which it
could fail. A claim that is called lossless must show a total variation of exactly zero
in every trial, and one that is called biased must show a counterexample. Anything else
means that the classification or the enumeration is wrong, and is a defect of this
package.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from random import Random

from evict_profile.errors import ConfigError
from evict_profile.lossless.enumeration import (
    Decoding,
    Outputs,
    marginal,
    target_law,
    total_variation,
)
from evict_profile.lossless.rules import (
    ACCEPTANCES,
    DRAFTS,
    RULES,
    SCORES,
    Classification,
    Combination,
    classify,
)
from evict_profile.lossless.trials import draw_decoding, readable
from evict_profile.lossless.world import COIN_WORLD
from evict_profile.records import to_mapping

TRIALS = 96
COMBINATIONS = [
    Combination(*words) for words in product(DRAFTS, ACCEPTANCES, RULES, SCORES)
]


class Contradiction(AssertionError):
    """The enumeration does not show what the classification says."""


@dataclass(frozen=True)
class Claim:
    """A classification, and the trials that could refute it.

    Attributes:
        readable: a way of decoding whose bias can be checked by hand.
        alone: compare the law of each request's output; otherwise all are taken
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
        tokens = " with ".join(" ".join(map(str, own)) for own in self.output)
        return (
            f"{self.world}; drafts with parents {self.parents}; {self.cut}: "
            f"{tokens} is emitted with probability {self.got}, not {self.expected}"
        )

    def as_json(self) -> dict[str, object]:
        """Exact fractions as text, `tv` as a number too."""
        return {**to_mapping(self), "world": self.world, "tv_value": float(self.tv)}


@dataclass(frozen=True)
class Audit:
    """A verdict with every counterexample that the enumeration showed."""

    combination: Combination
    verdict: Classification
    examples: tuple[Counterexample, ...]

    @property
    def max_tv(self) -> Fraction:
        """The largest total variation found."""
        return largest_tv(self.examples)

    @property
    def readable(self) -> Counterexample | None:
        """The counterexample that can be checked by hand."""
        return next((each for each in self.examples if each.seed is None), None)

    def as_json(self) -> dict[str, object]:
        """What `evict-profile audit --json` prints."""
        largest = max(self.examples, key=lambda example: example.tv, default=None)
        return {
            "subject": str(self.combination),
            "lossless": self.verdict.lossless,
            "max_tv": float(self.max_tv),
            "why": self.verdict.why,
            "instead": self.verdict.instead,
            "worlds": TRIALS,
            "counterexample": largest.as_json() if largest else None,
            "readable": self.readable.as_json() if self.readable else None,
        }


def audit_of_words(words: Mapping[str, str | None]) -> Audit:
    """The audit of a combination named by drafts, accept, rule and score."""
    missing = [f"--{name}" for name, word in words.items() if word is None]
    if missing:
        raise ConfigError(
            f"a combination also needs {', '.join(missing)}; "
            "without any option all of them are audited"
        )
    return audit(Combination(*words.values()))  # type: ignore[arg-type]


def audit(combination: Combination) -> Audit:
    """Classify a combination, and prove or show it in exact trials."""
    examples = _settled(_with_equal_law(combination))
    return Audit(combination, classify(combination), examples)


def _with_equal_law(combination: Combination) -> Combination:
    """One combination for all that decode alike, so that each is enumerated once."""
    words = combination
    return Combination(
        words.drafts,
        "target-only" if words.acceptance == "match" else words.acceptance,
        words.rule,
        "own" if words.rule == "fixed" else words.score,
    )


@lru_cache
def _settled(combination: Combination) -> tuple[Counterexample, ...]:
    return settle(claim_of(combination), range(TRIALS))


def claim_of(combination: Combination) -> Claim:
    """What `classify` says of a combination, with the trials that could refute it."""
    return Claim(
        str(combination),
        classify(combination).lossless,
        partial(draw_decoding, combination),
        readable(combination),
    )


def settle(claim: Claim, seeds: range) -> tuple[Counterexample, ...]:
    """Enumerate a claim's trials; every one that is biased."""
    found = [examine(claim.draw(Random(seed)), claim.alone, seed) for seed in seeds]
    if claim.readable:
        found.append(examine(claim.readable, claim.alone))
    biased = tuple(example for example in found if example)
    if claim.lossless and biased:
        raise Contradiction(f"'{claim.subject}' is called lossless, but: {biased[0]}")
    if not claim.lossless and not biased:
        raise Contradiction(
            f"'{claim.subject}' is called biased, but {len(seeds)} trials are exact"
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
    )


def summary(audits: Iterable[Audit]) -> list[tuple[str, Fraction]]:
    """The table: combinations that share a reason, and their largest total variation.

    Lossless combinations and top-k drafts stand by reason, biased rules one by one.
    """
    groups: dict[tuple[str, ...], list[Audit]] = {}
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


def _joint_name(combinations: list[Combination]) -> str:
    drafts = _words({c.drafts for c in combinations}, DRAFTS, "any")
    acceptance = _words({c.acceptance for c in combinations}, ACCEPTANCES, "any")
    rule = _words({c.rule for c in combinations}, RULES, "any rule")
    score = _words({c.score for c in combinations}, SCORES, "any score")
    return f"{drafts} drafts, {acceptance}, {rule}, {score}"


def _words(used: set[str], allowed: tuple[str, ...], every: str) -> str:
    if len(used) == len(allowed):
        return every
    return " or ".join(word for word in allowed if word in used)
