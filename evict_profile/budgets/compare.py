"""Rules against one another at equal budgets, and against what is claimed of them.

Both sides of a comparison come from the same resamples of prompts. Where one rule is
closer to the target and the other faster, both numbers are told and none is weighed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.budgets.draws import Draws
from evict_profile.budgets.front import Front
from evict_profile.budgets.schema import DEPLOYABLE, MASS, ORACLE, STATIC
from evict_profile.replay.verdict import percent
from evict_profile.stats import Bootstrap, Estimate, Floats

CLAIMED_ACCEPT = 0.986
"""MoE-Spec's accept length over that without a budget (arXiv 2602.16052)."""
CLAIMED_ORACLE = 0.75
"""Experts that MoE-Spec's oracle needs, over those of its own rule."""
SMALLEST_KL = 1e-7
"""Nats; below it float32 rounds, and a ratio tells nothing."""


@dataclass(frozen=True)
class Comparison:
    """One rule over another at a budget: divergence on given text, speed, accept
    length, each as a ratio."""

    rule: str
    other: str
    budget: int
    kl: Estimate
    speed: Estimate
    accept: Estimate

    @property
    def name(self) -> str:
        """ "mass against static"."""
        return f"{self.rule} against {self.other}"


@dataclass(frozen=True)
class OracleNeed:
    """Experts with which hindsight has the divergence of `mass` at a budget.

    Attributes:
        share: of the budget.
        at_most: even the oracle's smallest budget diverges less, and is told instead.
    """

    budget: int
    share: Estimate
    at_most: bool


def rivals() -> list[tuple[str, str]]:
    """Each rule that could be deployed with the one that it differs least from, and
    those that add up several things with MoE-Spec's as well.

    A rule that adds something to another bears its name before the plus.
    """
    closest = [
        (rule, STATIC if rule == MASS else rule.rpartition("+")[0] or MASS)
        for rule in DEPLOYABLE
        if rule != STATIC
    ]
    return closest + [(rule, MASS) for rule in DEPLOYABLE if "+" in rule]


def comparisons(draws: Sequence[Draws], resamples: Bootstrap) -> tuple[Comparison, ...]:
    """Each pair of rules at each budget that both have."""
    found = {(each.setting.rule, each.setting.budget): each for each in draws}
    return tuple(
        _compare(found[rule, budget], found[other, budget], resamples)
        for rule, other in rivals()
        for budget in [each.setting.budget for each in _of(draws, rule)]
        if (other, budget) in found
    )


def oracle_needs(
    draws: Sequence[Draws], resamples: Bootstrap
) -> tuple[OracleNeed, ...]:
    """At each budget of `mass`; none where the recording has no two of the oracle."""
    oracle = _of(draws, ORACLE)
    if len(oracle) < 2:
        return ()
    return tuple(_need(each, oracle, resamples) for each in _of(draws, MASS))


def sayings(front: Front, found: Sequence[Comparison]) -> list[str]:
    """A sentence on each pair of rules, and one on the accept length claimed."""
    said = []
    for name in dict.fromkeys(each.name for each in found):
        said.append(_says([each for each in found if each.name == name]))
    if front.of(MASS):
        said.append(accept_says(front))
    return said


def oracle_says(needs: Sequence[OracleNeed]) -> str:
    """What hindsight would spare, and what MoE-Spec found."""
    each = ", ".join(
        f"{percent(need.share)}{' or fewer still' if need.at_most else ''} at "
        f"{need.budget}"
        for need in needs
    )
    return (
        "To diverge as mass does at a budget, the oracle needs fewer experts: "
        f"{each}. MoE-Spec reports {100.0 * (CLAIMED_ORACLE - 1.0):+.0f} % for its own."
    )


def accept_says(front: Front) -> str:
    """The accept length under `mass`, beside what MoE-Spec reports."""
    mass = front.of(MASS)
    each = ", ".join(
        f"{change(point.accept_ratio)} at {point.setting.budget}" for point in mass
    )
    lower = [p.setting.budget for p in mass if p.accept_ratio.value < CLAIMED_ACCEPT]
    upper = [p.setting.budget for p in mass if p.setting.budget > max(lower, default=0)]
    claimed = f"{100.0 * (CLAIMED_ACCEPT - 1.0):.1f} %"
    holds = f"no more from {upper[0]} experts on" if upper else "more at every budget"
    return (
        f"Accept length under mass against no budget: {each}. MoE-Spec reports "
        f"{claimed} at the budgets that it chose; here it loses {holds}."
    )


def _compare(own: Draws, other: Draws, resamples: Bootstrap) -> Comparison:
    return Comparison(
        own.setting.rule,
        other.setting.rule,
        own.setting.budget,
        kl=resamples.estimate(_kl(own) / _kl(other)),
        speed=resamples.estimate(own.tokens_per_s / other.tokens_per_s),
        accept=resamples.estimate(own.committed / other.committed),
    )


def _need(mass: Draws, oracle: Sequence[Draws], resamples: Bootstrap) -> OracleNeed:
    budgets = np.array([float(each.setting.budget) for each in oracle])
    # More experts never make hindsight worse; noise must not make it look so.
    logs = np.minimum.accumulate(np.log([_kl(each) for each in oracle]), axis=0)
    wanted = np.log(_kl(mass))
    experts = np.array(
        [
            np.interp(-want, -line, budgets)
            for want, line in zip(wanted, logs.T, strict=True)
        ]
    )
    share = resamples.estimate(experts / mass.setting.budget)
    return OracleNeed(mass.setting.budget, share, bool(wanted[0] >= logs[0, 0]))


def change(ratio: Estimate) -> str:
    """A ratio as a change, without its interval: "-1.4 %"."""
    return f"{100.0 * (ratio.value - 1.0):+.1f} %"


def _kl(draws: Draws) -> Floats:
    return np.maximum(draws.kl, SMALLEST_KL)


def _of(draws: Sequence[Draws], rule: str) -> list[Draws]:
    """Those of a rule, the smallest budget first."""
    own = [each for each in draws if each.setting.rule == rule]
    return sorted(own, key=lambda each: each.setting.budget)


def _says(pair: Sequence[Comparison]) -> str:
    kls, speeds = [each.kl for each in pair], [each.speed for each in pair]
    name = pair[0].name
    return (
        f"{name[0].upper()}{name[1:]}, at equal budgets: divergence {_span(kls)}, "
        f"surely less at {sum(each.below_one for each in kls)} of {len(pair)} budgets, "
        f"surely more at {sum(each.above_one for each in kls)}; speed "
        f"{_span(speeds)}, surely higher at "
        f"{sum(each.above_one for each in speeds)}, surely lower at "
        f"{sum(each.below_one for each in speeds)}."
    )


def _span(ratios: Sequence[Estimate]) -> str:
    """From the least to the largest change."""
    changes = sorted(100.0 * (each.value - 1.0) for each in ratios)
    low, high = f"{changes[0]:+.1f}", f"{changes[-1]:+.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"
