"""The verdict: do not speculate, fix the width, or adapt; by how much, and how sure.

The simplest that will do is advised. One step up in trouble, from plain decoding to a
fixed tree and from that to a policy that reads a table, must be worth more than a
hundredth, and surely more than nothing. A difference whose interval holds "none" is
said to be no difference that can be told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evict_profile.replay.cell import Cell, Place, Standing, WidthPoint
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    GUIDED,
    ORACLE,
    THRESHOLD,
)
from evict_profile.stats import MIN_PROMPTS, Estimate

Choice = Literal["do not speculate", "fix the width", "adapt"]
WORTHWHILE = 1.01
"""Throughput over that of something simpler, from which trouble pays."""


@dataclass(frozen=True)
class Verdict:
    """What to do in one place.

    Attributes:
        policy: the policy that is advised.
        setting: the fixed depth and width, where that is all it takes.
        gain: throughput of what is advised over plain decoding.
        sure: whether the data tell it from the next simpler and the next harder.
        says: a paragraph for someone who decides.
    """

    place: Place
    choice: Choice
    policy: str
    setting: WidthPoint | None
    gain: Estimate
    sure: bool
    says: str


def judge(cell: Cell) -> Verdict:
    """The verdict on one cell."""
    fixed, guided = _fixed(cell), _guided(cell)
    pays = [each for each in guided if worthwhile(each.over[AR])]
    beyond = [each for each in pays if worthwhile(each.over[fixed.policy])]
    if beyond:
        return _adapt(cell, _simplest(beyond), fixed)
    if worthwhile(fixed.over[AR]):
        return _fix(cell, _simplest(guided), fixed)
    if pays:
        return _adapt(cell, _simplest(pays), fixed)
    return _abstain(cell, _simplest(guided), fixed)


def worthwhile(ratio: Estimate) -> bool:
    """Whether it is more than a hundredth, and surely more than nothing."""
    return ratio.value > WORTHWHILE and ratio.above_one


def _guided(cell: Cell) -> list[Standing]:
    """Policies that read a table, the simplest first: raw scores first, depth last."""
    return [cell.of(name) for name in GUIDED if cell.has(name)]


def _simplest(standings: Sequence[Standing]) -> Standing:
    """The first within a hundredth of the best."""
    best = max(each.tokens_per_s.value for each in standings)
    close = (e for e in standings if e.tokens_per_s.value * WORTHWHILE >= best)
    return next(close)


def _fixed(cell: Cell) -> Standing:
    """The best width at full depth, unless another depth as well is worth it."""
    width, pair = cell.of(BEST_WIDTH), cell.of(BEST_PAIR)
    better = pair.tokens_per_s.value > WORTHWHILE * width.tokens_per_s.value
    return pair if better else width


def _adapt(cell: Cell, adaptive: Standing, fixed: Standing) -> Verdict:
    extra, threshold = adaptive.over[fixed.policy], cell.of(THRESHOLD)
    says = [
        f"Adapt ({cell.place}). “{adaptive.policy}” gives {percent(adaptive.over[AR])} "
        f"against plain decoding and {percent(extra)} against the best fixed setting, "
        f"{fixed.setting}, which only hindsight knows.",
        _split(cell, adaptive, fixed),
        f"A threshold on scores that knows no cost, set to {threshold.setting} in "
        f"hindsight, comes to {percent(threshold.over[AR])}.",
    ]
    if not worthwhile(extra):
        says.append("From that setting it is no difference that can be told.")
    return Verdict(
        cell.place,
        "adapt",
        adaptive.policy,
        None,
        adaptive.over[AR],
        worthwhile(extra),
        " ".join(says),
    )


def _fix(cell: Cell, adaptive: Standing, fixed: Standing) -> Verdict:
    point = cell.best if fixed.policy == BEST_PAIR else cell.best_width
    extra = adaptive.over[fixed.policy]
    says = [
        f"Fix the width at {point.width} and the depth at {point.depth} "
        f"({cell.place}). That gives {percent(fixed.over[AR])} against plain "
        f"decoding, and is all it takes: “{adaptive.policy}”, which reads a cost "
        f"table, comes to {percent(extra)} against it, {_told(extra)}.",
        _split(cell, adaptive, fixed),
    ]
    return Verdict(
        cell.place,
        "fix the width",
        fixed.policy,
        point,
        fixed.over[AR],
        extra.high < WORTHWHILE,
        " ".join(says),
    )


def _abstain(cell: Cell, adaptive: Standing, fixed: Standing) -> Verdict:
    best = max(adaptive, fixed, key=lambda each: each.tokens_per_s.value)
    ratio = best.over[AR]
    says = [
        f"Do not speculate ({cell.place}). The best found, {_named(best)}, comes to "
        f"{percent(ratio)} against plain decoding, {_told(ratio)}."
    ]
    if cell.prompts < MIN_PROMPTS:
        says.append(
            f"{cell.prompts} prompts are too few to tell any difference; record "
            f"{MIN_PROMPTS} or more."
        )
    else:
        says.append(
            f"The full tree comes to {percent(cell.of(FULL_TREE).over[AR])}; even with "
            f"hindsight it would be {percent(cell.of(ORACLE).over[AR])}."
        )
    return Verdict(
        cell.place,
        "do not speculate",
        AR,
        None,
        cell.of(AR).over[AR],
        ratio.high < WORTHWHILE,
        " ".join(says),
    )


def _split(cell: Cell, adaptive: Standing, fixed: Standing) -> str:
    """Which part of a gain over the full tree any good fixed setting would bring."""
    full = cell.of(FULL_TREE)
    return (
        f"In units of plain decoding the full tree gives {full.over[AR].value:.2f}, "
        f"the fixed setting {fixed.over[AR].value:.2f}, "
        f"“{adaptive.policy}” {adaptive.over[AR].value:.2f} and hindsight "
        f"{cell.of(ORACLE).over[AR].value:.2f}."
    )


def _named(standing: Standing) -> str:
    setting = f" ({standing.setting})" if standing.setting else ""
    return f"“{standing.policy}”{setting}"


def _told(ratio: Estimate) -> str:
    """What an interval says of a ratio."""
    if ratio.below_one:
        return "which is surely slower"
    if not ratio.above_one:
        return "no difference that can be told"
    return "too little to be worth the trouble"


def percent(ratio: Estimate) -> str:
    """A ratio as a change with its interval: "+12.3 % (+8.1 to +15.0)"."""
    change = f"{100.0 * (ratio.value - 1.0):+.1f} %"
    if not ratio.known:
        return change
    low, high = (100.0 * (end - 1.0) for end in (ratio.low, ratio.high))
    return f"{change} ({low:+.1f} to {high:+.1f})"


def overall(verdicts: Sequence[Verdict]) -> str:
    """One paragraph over all places."""
    choices: tuple[Choice, ...] = ("adapt", "fix the width", "do not speculate")
    said = []
    for choice in choices:
        found = [verdict for verdict in verdicts if verdict.choice == choice]
        if found:
            said.append(_sentence(choice, found, len(verdicts)))
    unsure = [verdict for verdict in verdicts if not verdict.sure]
    if unsure:
        said.append(
            f"In {_count(len(unsure), len(verdicts))} the data do not tell what is "
            "advised from what is next to it; the simpler is advised there."
        )
    return " ".join(said)


def _sentence(choice: Choice, found: Sequence[Verdict], of: int) -> str:
    where = _count(len(found), of)
    if len(found) < of:
        where += f" ({'; '.join(str(verdict.place) for verdict in found)})"
    name = choice[0].upper() + choice[1:]
    if choice == "do not speculate":
        return f"{name} in {where}."
    gains = sorted(100.0 * (verdict.gain.value - 1.0) for verdict in found)
    span = f"{gains[0]:+.0f}"
    if round(gains[0]) != round(gains[-1]):
        span += f" to {gains[-1]:+.0f}"
    return f"{name} in {where}: {span} % against plain decoding."


def _count(some: int, every: int) -> str:
    if every == 1:
        return "the one place replayed"
    return f"all {every} places" if some == every else f"{some} of {every} places"
