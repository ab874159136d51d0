"""Each classification, with the largest bias of exact enumeration.

`tests/lossless/proof` enumerates 96 random worlds and a readable one, and generates
`counterexamples.json`. Combinations without a counterexample are exact in all.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from evict_profile.errors import ConfigError
from evict_profile.lossless.rules import (
    ACCEPTANCES,
    DRAFTS,
    RULES,
    SCORES,
    WORDS,
    Classification,
    Combination,
    classify,
)
from evict_profile.records import parse, read_mapping, to_mapping

WORLDS = 96
COMBINATIONS = [
    Combination(*words) for words in product(DRAFTS, ACCEPTANCES, RULES, SCORES)
]
FOUND = Path(__file__).with_name("counterexamples.json")


class Counterexample(Struct, frozen=True):
    """The output with the largest bias; fractions as text. Only the readable world has
    no seed.
    """

    seed: int | None
    vocabulary: int
    parents: tuple[int, ...]
    cut: str
    horizon: int
    tv: str
    output: tuple[tuple[int, ...], ...]
    expected: str
    got: str
    world: str
    tv_value: float

    def __str__(self) -> str:
        tokens = " with ".join(" ".join(map(str, own)) for own in self.output)
        return (
            f"{self.world}; drafts with parents {self.parents}; {self.cut}: "
            f"{tokens} is emitted with probability {self.got}, not {self.expected}"
        )


class Audit(Struct, frozen=True):
    combination: Combination
    verdict: Classification
    largest: Counterexample | None
    readable: Counterexample | None

    @property
    def max_tv(self) -> Fraction:
        return Fraction(self.largest.tv) if self.largest else Fraction(0)

    def as_json(self) -> dict[str, object]:
        return {
            "subject": str(self.combination),
            "lossless": self.verdict.lossless,
            "max_tv": float(self.max_tv),
            "why": self.verdict.why,
            "instead": self.verdict.instead,
            "worlds": WORLDS,
            "counterexample": to_mapping(self.largest),
            "readable": to_mapping(self.readable),
        }


@cache
def known_counterexamples() -> dict[str, dict[str, Counterexample | None]]:
    found = read_mapping(FOUND)
    return parse(dict[str, dict[str, Counterexample | None]], found, str(FOUND))


def audit(combination: Combination) -> Audit:
    found = known_counterexamples().get(str(combination), {})
    verdict = classify(combination)
    return Audit(combination, verdict, found.get("largest"), found.get("readable"))


def audit_of_words(words: Mapping[str, str | None]) -> Audit:
    for name, known in WORDS.items():
        if (word := words.get(name)) and word not in known:
            raise ConfigError(
                f"--{name} {word}: is unknown; choose one of {', '.join(known)}"
            )
    missing = [f"--{name}" for name, word in words.items() if word is None]
    if missing:
        raise ConfigError(
            f"a combination also needs {', '.join(missing)}; "
            "without any option all of them are audited"
        )
    return audit(Combination(*words.values()))  # type: ignore[arg-type]


def summary(audits: Iterable[Audit]) -> list[tuple[str, Fraction]]:
    """Combinations by reason, with the largest total variation.

    Each biased rule and score on sampled drafts is a line of its own.
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
