"""Whether a truncation rule is lossless, from four words that describe it.

The theorem (proof: docs/explanation/lossless.md), for drafts ordered parents before
children and elder siblings before younger:

- If the emitted token is the target's own sample, any rule on the past and the drafts
  is lossless: drafts decide how many tokens a step emits, never which.
- Under p/q rejection a rule is lossless if it is non-anticipating: whether a draft is
  verified depends on the past and on earlier drafts, not on its own token or later
  ones. The accept test is exact only for a token that is distributed as q.
"""

from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import astuple, replace

from evict_profile.errors import ConfigError

Drafts = Literal["topk", "sampled"]
Acceptance = Literal["target-only", "match", "rejection"]
Rule = Literal["fixed", "depth", "threshold", "stop", "ratio", "rate"]
Score = Literal["own", "shifted", "max"]

DRAFTS: tuple[Drafts, ...] = get_args(Drafts)
ACCEPTANCES: tuple[Acceptance, ...] = get_args(Acceptance)
RULES: tuple[Rule, ...] = get_args(Rule)
SCORES: tuple[Score, ...] = get_args(Score)
WORDS = {"drafts": DRAFTS, "accept": ACCEPTANCES, "rule": RULES, "score": SCORES}


class Combination(Struct, frozen=True):
    """How drafts are made, accepted and truncated.

    `rule`: `fixed` keeps a number of drafts decided in advance; `depth` keeps all
    levels, each drafted or not by the scores before it; `threshold` keeps scores above
    a bound; `stop` keeps drafts before the first that does not pay; `ratio` and `rate`
    keep the width of the highest (1 + benefit) / cost or benefit - rate * cost.

    `score`: `own` is the product of q over a node's path, `shifted` its parent's, `max`
    the product of the highest q along it.
    """

    drafts: Drafts
    acceptance: Acceptance
    rule: Rule
    score: Score

    def __post_init__(self) -> None:
        for (field, allowed), word in zip(WORDS.items(), astuple(self), strict=True):
            if word not in allowed:
                words = ", ".join(allowed)
                raise ConfigError(f"{field} '{word}' is unknown; give one of: {words}")

    def __str__(self) -> str:
        return f"{self.drafts} drafts, {self.acceptance}, {self.rule}, {self.score}"


class Classification(Struct, frozen=True):
    lossless: bool
    why: str
    instead: str | None


def classify(combination: Combination) -> Classification:
    if bias := _bias(combination):
        instead = nearest_lossless(combination)
        phrase = f"the {instead.rule} rule on {instead.score} scores"
        if combination.drafts == "topk":
            phrase = "target-only acceptance with the same drafts and rule"
        return Classification(False, bias, phrase)
    if combination.acceptance != "rejection":
        why = "Every emitted token is the target's own sample."
    elif combination.rule == "fixed":
        why = "The number of drafts is decided before any is seen."
    elif combination.rule == "depth":
        why = "A level is drafted or not before any of its tokens is drawn."
    else:
        why = "Whether a draft is verified is known before its own token is drawn."
    return Classification(True, why, None)


def nearest_lossless(combination: Combination) -> Combination:
    if _bias(combination) is None:
        return combination
    if combination.drafts == "topk":
        return replace(combination, acceptance="target-only")
    score: Score = "shifted" if combination.score == "own" else combination.score
    rule: Rule = "stop" if combination.rule in ("ratio", "rate") else combination.rule
    return replace(combination, rule=rule, score=score)


def _bias(combination: Combination) -> str | None:
    if combination.acceptance != "rejection":
        return None
    if combination.drafts == "topk":
        return "The test min(1, p/q) is exact for drafts drawn from q, not for top-k."
    if combination.rule in ("fixed", "depth"):
        return None
    if combination.score == "own":
        return "A draft is kept or cut by its own token, so that kept ones are not ~ q."
    if combination.rule in ("ratio", "rate"):
        return (
            "A later draft's score, which reads this token, decides whether it stays."
        )
    return None
