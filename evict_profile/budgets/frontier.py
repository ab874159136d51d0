"""Expected speed against quality loss, a point a setting, with intervals.

Speed is all tokens over all time, and quality a mean over tokens, so an interval must
resample what is independent: prompts. Every setting has the same prompts, and all take
the same resamples, so that most of the spread between prompts cancels in a comparison.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.budgets.load import BudgetRecord
from evict_profile.budgets.prices import RecordPrices
from evict_profile.budgets.schema import DEPLOYABLE, NONE, Setting
from evict_profile.replay.compare import MIXED
from evict_profile.stats import Bootstrap, Estimate, Floats


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
class Front:
    """Every setting on one workload, or on all of them.

    Attributes:
        prompts, tokens: prompts, and the tokens of them given to `none`.
        points: one a setting, `none` among them.
        pareto: names of the settings that no deployable one beats in both expected
            speed and divergence.
    """

    workload: str
    prompts: int
    tokens: int
    points: tuple[Point, ...]
    pareto: tuple[str, ...] = ()

    @property
    def none(self) -> Point:
        """The point without a budget."""
        return self.of(NONE)[0]

    @property
    def deployable(self) -> tuple[Point, ...]:
        """The points of settings that a server can run."""
        return tuple(p for p in self.points if p.setting.rule in DEPLOYABLE)

    def of(self, rule: str) -> tuple[Point, ...]:
        """The points of a rule, the smallest budget first."""
        points = [point for point in self.points if point.setting.rule == rule]
        return tuple(sorted(points, key=lambda point: point.setting.budget))


class Sums(dict[str, Floats]):
    """Sums of columns over the prompts of every resample, float64 [1 + resamples].

    The first of each is the sum as it is.
    """

    def per_step(self, name: str) -> Floats:
        """Mean over steps."""
        return self[name] / self["steps"]

    def per_token(self, name: str) -> Floats:
        """Mean over committed tokens."""
        return self[name] / self["committed"]

    @property
    def tokens_per_s(self) -> Floats:
        """Expected speed."""
        return 1e6 / self.per_token("us")

    @property
    def excess_loss(self) -> Floats:
        """Loss over that of the unbudgeted target, nats a token."""
        return self.per_token("loss") - self.per_token("plain_loss")


Texts = dict[bool, Sums]
"""The sums of one setting, over held-out text (True) and over the text it decoded."""


def fronts_of(record: BudgetRecord, prices: RecordPrices) -> list[Front]:
    """One of all workloads together, then one of each where there are several."""
    names = record.workloads if len(record.workloads) > 1 else ()
    alone = [front_of(record.only([name]), prices) for name in names]
    return [front_of(record, prices), *alone]


def front_of(record: BudgetRecord, prices: RecordPrices) -> Front:
    """The front of all workloads of a recording; it may be a part of what is priced."""
    bootstrap, names = Bootstrap(len(record.prompts)), record.workloads
    texts = _sums(record, prices, bootstrap)
    none = texts[record.none]
    points = tuple(
        _point(
            setting,
            texts[index],
            none,
            _predicted_us(record, prices, setting.budget, bootstrap),
            bootstrap,
        )
        for index, setting in enumerate(record.settings)
    )
    return Front(
        workload=MIXED if len(names) > 1 else names[0],
        prompts=len(record.prompts),
        tokens=int(none[True]["committed"][0]),
        points=points,
        pareto=tuple(_pareto(points)),
    )


def _sums(
    record: BudgetRecord, prices: RecordPrices, bootstrap: Bootstrap
) -> list[Texts]:
    """Of each setting."""
    steps = record.steps
    verify_us = prices.verify_us(steps, steps["union"].to_numpy())
    us = prices.step_us(steps, verify_us)
    priced = steps.assign(verify_us=verify_us, us=us, steps=1.0)
    by_prompt = priced.groupby(["setting", "given", "prompt"]).sum()

    def resampled(index: int, given: bool) -> Sums:
        own = by_prompt.loc[(index, given), :]
        sums = bootstrap.sums(own.to_numpy(np.float64))
        return Sums(zip(own.columns, sums, strict=True))

    return [
        {given: resampled(index, given) for given in (False, True)}
        for index in range(len(record.settings))
    ]


def _predicted_us(
    record: BudgetRecord, prices: RecordPrices, budget: int, bootstrap: Bootstrap
) -> Floats:
    """Verification of the steps of `none`, if no layer activates more than `budget`."""
    steps = record.steps
    plain = steps[(steps["setting"] == record.none) & ~steps["given"]]
    us = prices.verify_us(plain, np.minimum(plain["union"].to_numpy(), budget))
    by_prompt = np.bincount(plain["prompt"], us)
    sums: Floats = bootstrap.sums(by_prompt[:, None])[0]
    return sums


def _pareto(points: Sequence[Point]) -> Iterator[str]:
    """Names of the deployable settings that none beats in both speed and divergence."""
    deployable = [p for p in points if p.setting.rule in DEPLOYABLE]
    for point in deployable:
        faster = [p for p in deployable if p.earned.value > point.earned.value]
        if not any(p.given.kl.value < point.given.kl.value for p in faster):
            yield point.setting.name


def _point(
    setting: Setting,
    own: Texts,
    none: Texts,
    predicted_us: Floats,
    bootstrap: Bootstrap,
) -> Point:
    estimate, ran, plain = bootstrap.estimate, own[False], none[False]
    accept_ratio = ran.per_step("committed") / plain.per_step("committed")
    step_ratio = ran.per_step("us") / plain.per_step("us")
    return Point(
        setting=setting,
        tokens_per_s=estimate(ran.tokens_per_s),
        speedup=estimate(ran.tokens_per_s / plain.tokens_per_s),
        committed=estimate(ran.per_step("committed")),
        accept_ratio=estimate(accept_ratio),
        step_ratio=estimate(step_ratio),
        earned=estimate(np.minimum(accept_ratio, 1.0) / step_ratio),
        union=estimate(ran.per_step("union")),
        step_us=estimate(ran.per_step("us")),
        verify_us=estimate(ran.per_step("verify_us")),
        predicted_us=estimate(predicted_us / plain["steps"]),
        given=_quality(own[True], bootstrap),
        decoded=_quality(ran, bootstrap),
        over_none=estimate(own[True].excess_loss - none[True].excess_loss),
    )


def _quality(sums: Sums, bootstrap: Bootstrap) -> Quality:
    return Quality(
        kl=bootstrap.estimate(sums.per_token("kl")),
        agreement=bootstrap.estimate(sums.per_token("agrees")),
        excess_loss=bootstrap.estimate(sums.excess_loss),
    )
