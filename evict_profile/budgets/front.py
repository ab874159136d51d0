"""The front: expected speed against quality loss, a point a setting, with intervals."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evict_profile.budgets.draws import Drawer, Draws, Sums, per_token
from evict_profile.budgets.load import BudgetRecord
from evict_profile.budgets.prices import Prices
from evict_profile.budgets.schema import NONE, Setting
from evict_profile.replay.cell import MIXED
from evict_profile.stats import Bootstrap, Estimate


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
        predicted_us: the price C(n, min(U, B)) foretold from the steps of `none`.
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
    """

    workload: str
    prompts: int
    tokens: int
    points: tuple[Point, ...]

    @property
    def none(self) -> Point:
        """The point without a budget."""
        return next(each for each in self.points if each.setting.rule == NONE)

    def of(self, rule: str) -> tuple[Point, ...]:
        """The points of a rule, the smallest budget first."""
        own = [each for each in self.points if each.setting.rule == rule]
        return tuple(sorted(own, key=lambda each: each.setting.budget))


@dataclass(frozen=True, eq=False)
class Drawn:
    """A front with what it was drawn from, for whoever compares its points."""

    front: Front
    draws: tuple[Draws, ...]
    resamples: Bootstrap


def fronts(recording: BudgetRecord, prices: Prices) -> Iterator[Drawn]:
    """One of all workloads together, then one of each where there are several."""
    yield draw(recording, prices)
    if len(recording.workloads) > 1:
        for name in recording.workloads:
            yield draw(recording.only([name]), prices)


def draw(recording: BudgetRecord, prices: Prices) -> Drawn:
    """The front of all workloads of a recording, or of a part of one."""
    drawer, names = Drawer(recording, prices), recording.workloads
    draws = drawer.draws()
    none = draws[recording.none]
    front = Front(
        workload=MIXED if len(names) > 1 else names[0],
        prompts=len(recording.prompts),
        tokens=int(none.given["tokens"][0]),
        points=tuple(_point(each, none, drawer.resamples) for each in draws),
    )
    return Drawn(front, draws, drawer.resamples)


def _point(own: Draws, none: Draws, resamples: Bootstrap) -> Point:
    estimate = resamples.estimate
    accept_ratio = own.committed / none.committed
    step_ratio = own.per_step("us") / none.per_step("us")
    return Point(
        setting=own.setting,
        tokens_per_s=estimate(own.tokens_per_s),
        speedup=estimate(own.tokens_per_s / none.tokens_per_s),
        committed=estimate(own.committed),
        accept_ratio=estimate(accept_ratio),
        step_ratio=estimate(step_ratio),
        earned=estimate(np.minimum(accept_ratio, 1.0) / step_ratio),
        union=estimate(own.per_step("union")),
        step_us=estimate(own.per_step("us")),
        verify_us=estimate(own.per_step("verify_us")),
        predicted_us=estimate(own.predicted_us),
        given=_quality(own.given, resamples),
        decoded=_quality(own.decoded, resamples),
        over_none=estimate(own.excess_loss - none.excess_loss),
    )


def _quality(sums: Sums, resamples: Bootstrap) -> Quality:
    loss, plain = (per_token(sums, name) for name in ("loss", "plain_loss"))
    return Quality(
        kl=resamples.estimate(per_token(sums, "kl")),
        agreement=resamples.estimate(per_token(sums, "agrees")),
        excess_loss=resamples.estimate(loss - plain),
    )
