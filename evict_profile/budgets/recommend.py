"""Which budget to run, if any: the fastest that keeps a stated quality, how sure.

A budget keeps a quality only where the worse end of its interval does. Quality is
judged on given text, which is the same for every setting; what a setting has decoded it
chose itself. For the same reason a budget gets no credit for committing more tokens a
step than the unbudgeted target does.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from evict_profile.budgets.front import Front, Point
from evict_profile.budgets.schema import DEPLOYABLE, Setting
from evict_profile.errors import ConfigError
from evict_profile.replay.verdict import WORTHWHILE, percent
from evict_profile.stats import MIN_PROMPTS, Estimate

Choice = Literal["take the budget", "run without", "none keeps the quality"]
USUAL_AGREEMENT = 0.98
"""What is asked where nothing is."""


@dataclass(frozen=True)
class Bounds:
    """What must be kept; None asks nothing.

    Attributes:
        kl: nats a token of given text, at most.
        agreement: share of tokens of given text, at least.
        loss: nats a token of given text over the unbudgeted target, at most.
        accept: accept length over that without a budget, at least.
    """

    kl: float | None = None
    agreement: float | None = None
    loss: float | None = None
    accept: float | None = None

    def __post_init__(self) -> None:
        for name, most in (("kl", None), ("agreement", 1.0), ("accept", 1.0)):
            asked = getattr(self, name)
            if asked is not None and not 0.0 < asked <= (most or asked):
                within = f"above 0 and at most {most:g}" if most else "above 0"
                raise ConfigError(f"--{name} {asked:g} cannot be; give one {within}")

        if self.loss is not None and not math.isfinite(self.loss):
            raise ConfigError(f"--loss {self.loss:g} cannot be; give a number of nats")

    @property
    def stated(self) -> bool:
        """Whether anything is asked."""
        asked = (self.kl, self.agreement, self.loss, self.accept)
        return any(each is not None for each in asked)

    def keeps(self, point: Point) -> bool:
        """Whether the worse end of every interval that counts is within bounds."""
        given, met = point.given, []
        if self.kl is not None:
            met.append(given.kl.high <= self.kl)
        if self.agreement is not None:
            met.append(given.agreement.low >= self.agreement)
        if self.loss is not None:
            met.append(given.excess_loss.high <= self.loss)
        if self.accept is not None:
            met.append(point.accept_ratio.low >= self.accept)
        return all(met)

    def __str__(self) -> str:
        return " and ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        if self.kl is not None:
            yield f"a divergence of at most {self.kl:g} nats a token"
        if self.agreement is not None:
            yield f"an agreement of at least {100.0 * self.agreement:g} %"
        if self.loss is not None:
            yield f"a held-out loss of at most {self.loss:g} nats a token more"
        if self.accept is not None:
            yield f"an accept length of at least {self.accept:g} of the unbudgeted"


@dataclass(frozen=True)
class Advice:
    """What to do on one workload, or on all.

    Attributes:
        asked: the quality to keep.
        usual: nobody asked for it: it is the default.
        point: what is advised, or what comes closest; None where no rule is deployable.
        kept: names of all settings that keep the quality.
        says: a paragraph for someone who decides.
    """

    choice: Choice
    asked: Bounds
    usual: bool
    point: Point | None
    kept: tuple[str, ...]
    says: str

    @property
    def asking(self) -> str:
        """What quality was to be kept, in words."""
        default = ", which is the default" if self.usual else ""
        return f"Asked is {self.asked}, in the worse end of its interval{default}."


def recommend(front: Front, stated: Bounds) -> Advice:
    """The fastest deployable setting that keeps what is stated, if it brings much."""
    usual = not stated.stated
    asked = Bounds(agreement=USUAL_AGREEMENT) if usual else stated
    deployable = [e for e in front.points if e.setting.rule in DEPLOYABLE]
    kept = [each for each in deployable if asked.keeps(each)]
    choice, point, says = _choose(front, asked, deployable, kept)
    names = tuple(each.setting.name for each in kept)
    return Advice(choice, asked, usual, point, names, says)


def _choose(
    front: Front, asked: Bounds, deployable: Sequence[Point], kept: Sequence[Point]
) -> tuple[Choice, Point | None, str]:
    if not kept:
        closest = min(deployable, key=lambda p: p.given.kl.value, default=None)
        return "none keeps the quality", closest, _none_keeps(front, closest)
    faster = [each for each in kept if each.earned.above_one]
    point = max(faster or kept, key=lambda each: each.earned.value)
    if not faster:
        return "run without", point, _brings_nothing(point)
    return "take the budget", point, _take(point, kept)


def _take(point: Point, kept: Sequence[Point]) -> str:
    said = [
        f"Take {described(point.setting)}. Expected are "
        f"{point.tokens_per_s.value:.1f} tokens/s, {gain(point)}. It is LOSSY: "
        f"{quality(point)}."
    ]
    least = point.earned.value / WORTHWHILE
    close = [
        each.setting.name
        for each in kept
        if each is not point and each.earned.value >= least
    ]
    if close:
        said.append(f"Within a hundredth of its speed: {', '.join(close)}.")
    return " ".join(said)


def _brings_nothing(point: Point) -> str:
    surely = point.earned.below_one
    told = "That is surely slower" if surely else "That is no gain that can be told"
    return (
        f"Run without a budget: {point.setting.name}, the fastest that keeps that, "
        f"comes to {gain(point)}. {told}, and it is LOSSY: {quality(point)}."
    )


def _none_keeps(front: Front, closest: Point | None) -> str:
    if closest is None:
        return "The recording has no rule that could be deployed; record one."
    if front.prompts < MIN_PROMPTS:
        return (
            f"{front.prompts} prompts are too few to tell whether a budget keeps it; "
            f"record {MIN_PROMPTS} or more."
        )
    return (
        "No budget keeps that: run without, or ask for less. Closest to the unbudgeted "
        f"target is {closest.setting.name}, at {gain(closest)}: {quality(closest)}."
    )


def described(setting: Setting) -> str:
    """A rule and its budget, in words; with the layers' own where they differ."""
    words = f"'{setting.rule}' with {setting.budget} experts a layer"
    if len(set(setting.per_layer)) == 1:
        return words
    return f"{words} in the mean ({', '.join(map(str, setting.per_layer))})"


def gain(point: Point) -> str:
    """Speed against no budget, what makes it up, and what of it counts."""
    said = (
        f"{percent(point.speedup)} against no budget (time a step "
        f"{percent(point.step_ratio)}, tokens a step {percent(point.accept_ratio)})"
    )
    if point.accept_ratio.value <= 1.0:
        return said
    return (
        f"{said}, of which {percent(point.earned)} counts: more tokens a step than "
        "without a budget come from text that is easier to draft"
    )


def quality(point: Point) -> str:
    """Every measure of quality with its interval."""
    given = point.given
    return (
        f"divergence {spelt(given.kl, '.4f')} nats a token of given text, agreement "
        f"{spelt(given.agreement, '.2%')}, held-out loss "
        f"{spelt(given.excess_loss, '+.4f')} nats"
    )


def spelt(estimate: Estimate, form: str, to: str = " to ") -> str:
    """A number with its interval, if it has one: "0.0123 (0.0110 to 0.0140)"."""
    value, low, high = (
        format(end, form) for end in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low}{to}{high})" if estimate.known and low != high else value
