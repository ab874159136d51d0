"""The audit: every classification beside its exact enumeration.

`rules` classifies from a theorem; here each verdict has to survive trials in which it
could fail. The further cases are rules that four words do not describe, and budgets.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product

from evict_profile.errors import ConfigError
from evict_profile.lossless.budget_cases import BUDGET_CASES
from evict_profile.lossless.cases import CASES, Case
from evict_profile.lossless.claims import Claim, Counterexample, Settlement, settle
from evict_profile.lossless.rules import (
    ACCEPTANCES,
    DRAFTS,
    RULES,
    SCORES,
    Combination,
    Verdict,
    classify,
)
from evict_profile.lossless.trials import draw_decoding, readable

TRIALS = 96
FURTHER = CASES + BUDGET_CASES
AUDITS = len(DRAFTS) * len(ACCEPTANCES) * len(RULES) * len(SCORES) + len(FURTHER)


@dataclass(frozen=True)
class Audit:
    """A verdict with what the enumeration showed."""

    subject: str
    verdict: Verdict
    settlement: Settlement
    combination: Combination | None = None

    def as_json(self) -> dict[str, object]:
        """What `evict-profile audit --json` prints."""
        return {
            "subject": self.subject,
            "lossless": self.verdict.lossless,
            "max_tv": float(self.settlement.max_tv),
            "why": self.verdict.why,
            "instead": self.verdict.instead,
            "worlds": self.settlement.worlds,
            "counterexample": _json(self.settlement.largest),
            "readable": _json(self.settlement.readable),
        }


@dataclass(frozen=True)
class Line:
    """One line of the table: audits that share a verdict, and their largest bias."""

    subject: str
    lossless: bool
    why: str
    max_tv: Fraction


def audit(combination: Combination) -> Audit:
    """Classify a combination, and prove or show it in exact trials.

    Raises:
        Contradiction: the enumeration does not show what the classification says.
    """
    settlement = _settled(_with_equal_law(combination))
    verdict = classify(combination)
    return Audit(str(combination), verdict, settlement, combination)


def audit_of_words(words: Mapping[str, str | None]) -> Audit:
    """The audit of a combination named by drafts, accept, rule and score.

    Raises:
        ConfigError: a word is missing, or none of those it can be.
    """
    missing = [f"--{name}" for name, word in words.items() if word is None]
    if missing:
        raise ConfigError(
            f"a combination also needs {', '.join(missing)}; "
            "without any option the whole table is audited"
        )
    return audit(Combination(*words.values()))  # type: ignore[arg-type]


def audit_all() -> Iterator[Audit]:
    """Every combination, then the further cases; `AUDITS` in all."""
    for words in product(DRAFTS, ACCEPTANCES, RULES, SCORES):
        yield audit(Combination(*words))
    yield from map(audit_case, FURTHER)


def audit_case(case: Case) -> Audit:
    """A rule that four words do not describe."""
    verdict = Verdict(case.lossless, case.why, None)
    return Audit(case.subject, verdict, settle(case.claim, range(TRIALS)))


def claim_of(combination: Combination) -> Claim:
    """What `classify` says of a combination, with the trials that could refute it."""
    return Claim(
        str(combination),
        classify(combination).lossless,
        partial(draw_decoding, combination),
        readable(combination),
    )


def summary(audits: Iterable[Audit]) -> list[Line]:
    """The table: lossless combinations by reason, biased rules and cases one by one."""
    groups: dict[tuple[str, ...], list[Audit]] = {}
    for each in audits:
        groups.setdefault(_line_key(each), []).append(each)
    return [_line(group) for group in groups.values()]


def _line_key(audit: Audit) -> tuple[str, ...]:
    combination = audit.combination
    if combination is None:
        return (audit.subject,)
    if audit.verdict.lossless or combination.drafts == "topk":
        return (audit.verdict.why,)
    return (combination.rule, combination.score)


def _line(audits: list[Audit]) -> Line:
    combinations = [audit.combination for audit in audits if audit.combination]
    verdict = audits[0].verdict
    return Line(
        _joint_name(combinations) if combinations else audits[0].subject,
        verdict.lossless,
        verdict.why,
        max(audit.settlement.max_tv for audit in audits),
    )


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


def _with_equal_law(combination: Combination) -> Combination:
    """One combination for all that decode alike, so that each is enumerated once."""
    if combination.acceptance == "match":
        combination = replace(combination, acceptance="target-only")
    if combination.rule == "fixed":
        combination = replace(combination, score="own")
    return combination


@lru_cache
def _settled(combination: Combination) -> Settlement:
    return settle(claim_of(combination), range(TRIALS))


def _json(example: Counterexample | None) -> dict[str, object] | None:
    return example.as_json() if example else None
