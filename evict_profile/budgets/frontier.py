"""Expected speed against quality loss, a point a setting, with intervals.

Speed is all tokens over all time, and quality a mean over tokens, so an interval must
resample what is independent: prompts. Every setting has the same prompts, and all take
the same resamples, so that most of the spread between prompts cancels in a comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.budgets.load import BudgetRecord, Steps
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.schema import DEPLOYABLE, MASS, NONE, STATIC, Setting
from evict_profile.replay.compare import MIXED
from evict_profile.stats import Bootstrap, Estimate, Floats

MIN_KL = 1e-7
"""Nats; below it float32 rounds, and a ratio tells nothing."""

Sums = dict[str, Floats]
"""By column, float64 [1 + resamples]; the first of each is the sum as it is."""


@dataclass(frozen=True)
class Quality:
    """How far a setting is from the unbudgeted target on one kind of text.

    Attributes:
        kl: KL(unbudgeted || budgeted), nats a token.
        agreement: share of tokens where both find the same token likeliest.
        excess_loss: -log p of the token, over the unbudgeted target's, nats a token.
    """

    kl: Estimate
    agreement: Estimate
    excess_loss: Estimate


@dataclass(frozen=True)
class Point:
    """One setting. Speed is of decoded text; means of steps are over decoding steps.

    Attributes:
        speedup: over `none` on the same prompts; it is accept_ratio / step_ratio.
        accept_ratio: tokens a step, over those of `none`.
        step_ratio: time of a step, over that of `none`.
        earned: speedup with tokens a step counted up to those of `none`: what goes
            beyond is no speed, but that the text under the budget is easier to draft.
        committed: tokens a step, the target's own included.
        union: distinct experts, mean over layers.
        step_us: a whole step, with drafting, routing and the rest.
        verify_us: the price of what ran; routing is not in it.
        predicted_us: the price C(n, min(U, B)) predicted from the steps of `none`.
        given: quality on held-out text, the same for every setting.
        decoded: quality on the text that this setting chose itself.
        over_none: excess loss on given text over that of `none`.
    """

    setting: Setting
    tokens_per_s: Estimate
    speedup: Estimate
    committed: Estimate
    accept_ratio: Estimate
    step_ratio: Estimate
    earned: Estimate
    union: Estimate
    step_us: Estimate
    verify_us: Estimate
    predicted_us: Estimate
    given: Quality
    decoded: Quality
    over_none: Estimate


@dataclass(frozen=True)
class Comparison:
    """One rule over another at one budget: divergence on given text, speed and accept
    length, each as a ratio, both sides from the same resamples."""

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
class Front:
    """Every setting on one workload, or on all of them.

    Attributes:
        prompts, tokens: prompts, and the tokens of them given to `none`.
        points: one a setting, `none` among them.
        comparisons: rules against one another at equal budgets.
    """

    workload: str
    prompts: int
    tokens: int
    points: tuple[Point, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def none(self) -> Point:
        """The point without a budget."""
        return next(point for point in self.points if point.setting.rule == NONE)

    def of(self, rule: str) -> tuple[Point, ...]:
        """The points of a rule, the smallest budget first."""
        points = [point for point in self.points if point.setting.rule == rule]
        return tuple(sorted(points, key=lambda point: point.setting.budget))

    @property
    def pareto(self) -> tuple[Point, ...]:
        """Settings that no deployable one beats in both speed and divergence."""
        points = [p for p in self.points if p.setting.rule in DEPLOYABLE]
        return tuple(
            point
            for point in points
            if not any(
                other.earned.value > point.earned.value
                and other.given.kl.value < point.given.kl.value
                for other in points
            )
        )


@dataclass(frozen=True, eq=False)
class Samples:
    """The sums of one setting in every resample.

    Attributes:
        decoded, given: over the text it decoded, and over held-out text.
        predicted: over the steps of `none`, at what this budget allows.
    """

    setting: Setting
    decoded: Sums
    given: Sums
    predicted: Sums

    @cached_property
    def tokens_per_s(self) -> Floats:
        """Expected speed on decoded text."""
        return 1e6 * self.decoded["tokens"] / self.decoded["us"]

    @cached_property
    def committed(self) -> Floats:
        """Tokens a step, which is the accept length with the target's own token."""
        return self.per_step("tokens")

    @cached_property
    def kl(self) -> Floats:
        """Nats a token of given text, for a ratio."""
        return np.maximum(_per_token(self.given, "kl"), MIN_KL)

    def per_step(self, name: str) -> Floats:
        """A sum over decoded text as a mean over its steps."""
        return self.decoded[name] / self.decoded["steps"]


def fronts_of(record: BudgetRecord, prices: Prices) -> list[Front]:
    """One of all workloads together, then one of each where there are several."""
    names = record.workloads if len(record.workloads) > 1 else ()
    return [
        front_of(record, prices),
        *(front_of(record.only([name]), prices) for name in names),
    ]


def front_of(record: BudgetRecord, prices: Prices) -> Front:
    """The front of all workloads of a recording; it may be a part of what is priced."""
    bootstrap = Bootstrap(len(record.prompts))
    samples = [
        _samples(record, prices, bootstrap, index)
        for index in range(len(record.settings))
    ]
    none, names = samples[record.none], record.workloads
    return Front(
        workload=MIXED if len(names) > 1 else names[0],
        prompts=len(record.prompts),
        tokens=int(none.given["tokens"][0]),
        points=tuple(_point(each, none, bootstrap) for each in samples),
        comparisons=tuple(_comparisons(samples, bootstrap)),
    )


def _samples(
    record: BudgetRecord, prices: Prices, bootstrap: Bootstrap, index: int
) -> Samples:
    """The sums of one setting."""
    steps, count, setting = record.steps, len(record.prompts), record.settings[index]
    ran = steps.take((steps.setting == index) & ~steps.given)
    given = steps.take((steps.setting == index) & steps.given)
    unbudgeted = steps.take((steps.setting == record.none) & ~steps.given)
    allowed = np.minimum(unbudgeted.union, setting.budget)
    verify_us = prices.verify_us(ran, ran.union)
    priced = {
        "verify_us": verify_us,
        "us": prices.step_us(ran, verify_us),
        "union": ran.union,
    }
    predicted = {"verify_us": prices.verify_us(unbudgeted, allowed)}
    return Samples(
        setting,
        decoded=_sums(bootstrap, ran, count, priced),
        given=_sums(bootstrap, given, count, {}),
        predicted=_sums(bootstrap, unbudgeted, count, predicted),
    )


def _sums(bootstrap: Bootstrap, steps: Steps, prompts: int, more: Sums) -> Sums:
    """Columns summed by prompt, then over each resample's prompts."""
    columns = {
        "steps": np.ones(len(steps.prompt)),
        "tokens": steps.committed.astype(np.float64),
        "kl": steps.kl,
        "agrees": steps.agrees,
        "loss": steps.loss,
        "plain_loss": steps.plain_loss,
        **more,
    }
    sums = [np.bincount(steps.prompt, c, prompts) for c in columns.values()]
    by_prompt = np.stack(sums, axis=1, dtype=np.float64)
    return dict(zip(columns, bootstrap.sums(by_prompt), strict=True))


def _point(samples: Samples, none: Samples, bootstrap: Bootstrap) -> Point:
    estimate, predicted = bootstrap.estimate, samples.predicted
    accept_ratio = samples.committed / none.committed
    step_ratio = samples.per_step("us") / none.per_step("us")
    return Point(
        setting=samples.setting,
        tokens_per_s=estimate(samples.tokens_per_s),
        speedup=estimate(samples.tokens_per_s / none.tokens_per_s),
        committed=estimate(samples.committed),
        accept_ratio=estimate(accept_ratio),
        step_ratio=estimate(step_ratio),
        earned=estimate(np.minimum(accept_ratio, 1.0) / step_ratio),
        union=estimate(samples.per_step("union")),
        step_us=estimate(samples.per_step("us")),
        verify_us=estimate(samples.per_step("verify_us")),
        predicted_us=estimate(predicted["verify_us"] / predicted["steps"]),
        given=_quality(samples.given, bootstrap),
        decoded=_quality(samples.decoded, bootstrap),
        over_none=estimate(_excess_loss(samples.given) - _excess_loss(none.given)),
    )


def _quality(sums: Sums, bootstrap: Bootstrap) -> Quality:
    return Quality(
        kl=bootstrap.estimate(_per_token(sums, "kl")),
        agreement=bootstrap.estimate(_per_token(sums, "agrees")),
        excess_loss=bootstrap.estimate(_excess_loss(sums)),
    )


def _per_token(sums: Sums, name: str) -> Floats:
    return sums[name] / sums["tokens"]


def _excess_loss(sums: Sums) -> Floats:
    return _per_token(sums, "loss") - _per_token(sums, "plain_loss")


def _comparisons(
    samples: Sequence[Samples], bootstrap: Bootstrap
) -> Sequence[Comparison]:
    """Each pair of rules at each budget that both have, small budgets first."""
    by_setting = {(s.setting.rule, s.setting.budget): s for s in samples}
    return [
        Comparison(
            rule,
            other,
            budget,
            kl=bootstrap.estimate(one.kl / two.kl),
            speed=bootstrap.estimate(one.tokens_per_s / two.tokens_per_s),
            accept=bootstrap.estimate(one.committed / two.committed),
        )
        for rule, other in rule_pairs()
        for budget in sorted(b for name, b in by_setting if name == rule)
        if (other, budget) in by_setting
        for one, two in [(by_setting[rule, budget], by_setting[other, budget])]
    ]


def rule_pairs() -> list[tuple[str, str]]:
    """Each deployable rule with the one that it differs least from, and those that add
    up several things with MoE-Spec's as well.

    A rule that adds something to another bears its name before the plus.
    """
    closest = [
        (rule, STATIC if rule == MASS else rule.rpartition("+")[0] or MASS)
        for rule in DEPLOYABLE
        if rule != STATIC
    ]
    return closest + [(rule, MASS) for rule in DEPLOYABLE if "+" in rule]
