"""The numbers of a scenario's replay, and its verdict.

Two questions are asked: whether drafting pays over plain decoding, and whether adapting
with a table beats the strongest setting without costs. `Estimate.verdict` answers both.
What it does not settle is said so, and the simpler policy is advised until it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from evict_profile.replay.policies import AR, FULL_TREE, ONE_SETTING, SCHEDULE
from evict_profile.stats import WHETHER_DRAFTING, Estimate, Verdict

ADAPT, FIX, STOP = ACTIONS = ("adapt", "fix a setting", "do not speculate")
WHETHER_ADAPTING = "whether adapting beats a fixed setting"


@dataclass(frozen=True)
class Scenario:
    """Of a traffic, `shares` are those of its batches, and `batch` is its first."""

    workload: str
    temperature: float
    batch: int
    shares: str = ""

    @property
    def batches(self) -> str:
        return self.shares or str(self.batch)

    def __str__(self) -> str:
        temperature = f"temperature {self.temperature:g}"
        return f"{self.workload}, {temperature}, batch {self.batches}"


@dataclass(frozen=True)
class PolicyResult:
    """One policy in one scenario. Means are over the steps of requests.

    Attributes:
        setting: fastest in hindsight, if any.
        served_by: environment and flags that set a server so; empty where none can.
        tokens_per_s: of the whole batch; less the optimism of a setting.
        over: its throughput over that of each baseline, and of the oracle.
        committed, verified: tokens of a request in a step, its root included.
        union: distinct experts a layer, of the whole batch.
        step_us: time of a step of the batch.
    """

    policy: str
    setting: str
    served_by: str
    tokens_per_s: Estimate
    over: Mapping[str, Estimate]
    committed: Estimate
    verified: Estimate
    depth: Estimate
    union: Estimate
    step_us: Estimate
    verify_us: Estimate
    draft_us: Estimate
    fixed_us: Estimate

    def __str__(self) -> str:
        return f"{self.policy} ({self.setting})" if self.setting else self.policy


@dataclass(frozen=True)
class FixedPoint:
    depth: int
    width: int
    tokens_per_s: float


@dataclass(frozen=True)
class Comparison:
    """All policies in one scenario, and what follows.

    Attributes:
        strongest, adaptive: the simplest within one per cent of the fastest of
            `HINDSIGHT` and of `GUIDED`; less their optimism.
        assumptions: what the choice assumes without a measurement.
        estimate: ends of an estimated table's 95 % interval of a step over a plain
            one; () of a measured one, whose intervals are caveats.
        caveats: all that latencies assume, and whether prompts are too few.
    """

    scenario: Scenario
    prompts: int
    tokens: int
    results: tuple[PolicyResult, ...]
    fixed: tuple[FixedPoint, ...]
    strongest: PolicyResult
    adaptive: PolicyResult
    assumptions: tuple[str, ...]
    drafting_is_assumed: bool
    estimate: tuple[float, ...]
    caveats: tuple[str, ...]

    def of(self, policy: str) -> PolicyResult:
        return next(each for each in self.results if each.policy == policy)

    @property
    def best(self) -> FixedPoint:
        """The fixed depth and width that were fastest in hindsight."""
        return fastest(self.fixed)

    @property
    def best_width(self) -> FixedPoint:
        deepest = max(point.depth for point in self.fixed)
        return fastest([point for point in self.fixed if point.depth == deepest])

    @property
    def choice(self) -> str:
        """One of `ACTIONS`; of what is not settled, the simpler one."""
        fixed, adaptive, beats = self._verdicts
        if adaptive == beats == "pays":
            return ADAPT
        if fixed == "pays":
            return FIX
        return ADAPT if adaptive == "pays" else STOP

    @property
    def advised(self) -> PolicyResult:
        by_choice = {ADAPT: self.adaptive, FIX: self.strongest, STOP: self.of(AR)}
        return by_choice[self.choice]

    @property
    def adaptive_over_fixed(self) -> Estimate:
        return self.adaptive.over[self.strongest.policy]

    @property
    def _verdicts(self) -> tuple[Verdict, Verdict, Verdict]:
        """Of the strongest and the adaptive policy over plain decoding, and of both;
        within the error of an estimated table nothing is settled.
        """
        over = self.strongest.over[AR], self.adaptive.over[AR], self.adaptive_over_fixed
        low, high = (end((1.0, *self.estimate)) for end in (min, max))
        wide = [Estimate(each.value, each.low / high, each.high / low) for each in over]
        return wide[0].verdict, wide[1].verdict, wide[2].verdict

    @property
    def unsettled(self) -> str:
        """The question left open; "" if settled, which no estimated table does."""
        fixed, adaptive, beats = self._verdicts
        settled = {
            ADAPT: beats == "pays" or fixed == "does not pay",
            FIX: beats == "does not pay",
            STOP: fixed == adaptive == "does not pay",
        }[self.choice]
        question = WHETHER_DRAFTING if self.choice == STOP else WHETHER_ADAPTING
        return "" if settled and not self.estimate else question

    @property
    def settled(self) -> bool:
        return not self.unsettled

    @property
    def advice(self) -> str:
        """What to do, and what is not settled, where anything is not."""
        adapt = f"adapt with “{self.adaptive.policy}”, which no plug-in does"
        fix = f"fix a setting, {self.strongest}, which no flag sets"
        action = {ADAPT: adapt, FIX: fix, STOP: STOP}[self.choice]
        if self.advised.served_by:
            action, _, _ = action.rpartition(", which no")
        elif self.advised.policy == SCHEDULE:
            action += "; export writes one of chains"
        return "; ".join(_said(self.unsettled, action))

    @property
    def sure(self) -> bool:
        return self.settled and not self.drafting_is_assumed

    @property
    def break_even(self) -> tuple[str, ...]:
        """For one batch; steps of several have no mean at which both are equal."""
        return () if self.scenario.shares else tuple(_break_even(self))

    @property
    def gains(self) -> str:
        return self._of_traffic() if self.scenario.shares else self._of_batch()

    def __str__(self) -> str:
        return (
            f"{self.scenario}: {self.advice}. {self.gains}"
            f"{''.join(f' {each}' for each in self.break_even)}{_estimated([self])}"
            f"{''.join(f' Assumed: {each}.' for each in self.assumptions)}"
        )

    def _of_batch(self) -> str:
        fixed, name = self.strongest, f"“{self.adaptive.policy}”"
        return (
            f"Against plain decoding {fixed}, the strongest setting that knows no "
            f"cost, gives {percent(fixed.over[AR])}, "
            f"{name} {percent(self.adaptive.over[AR])}; "
            f"against that setting {name} gives {percent(self.adaptive_over_fixed)}."
        )

    def _of_traffic(self) -> str:
        """What all else gains over one setting for all batches."""
        settings = (each for each in self.results if each.policy in ONE_SETTING)
        one = max(settings, key=lambda each: each.tokens_per_s.value)
        schedule = (each for each in self.results if each.policy == SCHEDULE)
        others = (*schedule, self.adaptive, self.of(FULL_TREE))
        gains = (f"{each} gives {percent(each.over[one.policy])}" for each in others)
        return (
            f"One setting for all batches, {one}, decodes "
            f"{one.tokens_per_s.value:.0f} tokens/s, {percent(one.over[AR])} against "
            f"plain decoding. Against it {', '.join(gains)}."
        )


def fastest(points: Sequence[FixedPoint]) -> FixedPoint:
    return max(points, key=lambda point: point.tokens_per_s)


def percent(ratio: Estimate) -> str:
    """A ratio as a change with its interval: "+12.3 % (+8.1 to +15.0)"."""
    change = f"{100.0 * (ratio.value - 1.0):+.1f} %"
    if not ratio.known:
        return change
    low, high = (100.0 * (end - 1.0) for end in (ratio.low, ratio.high))
    return f"{change} ({low:+.1f} to {high:+.1f})"


def summary(found: Sequence[Comparison]) -> str:
    sentences = []
    for choice, unsettled in product(ACTIONS, ("", WHETHER_ADAPTING, WHETHER_DRAFTING)):
        made = [e for e in found if (e.choice, e.unsettled) == (choice, unsettled)]
        if made:
            said, *doubt = _said(unsettled, choice)
            where = f"{said.capitalize()} in {len(made)} of {len(found)} scenarios"
            sentences.append(
                "; ".join((f"{where}: {_settings(choice, made)}", *doubt)) + "."
            )
    if any(each.settled and not each.sure for each in found):
        sentences.append("Drafting is assumed, so no choice is sure.")
    return " ".join(sentences) + _estimated(found)


def _said(unsettled: str, action: str) -> tuple[str, ...]:
    """The action, then what is not settled; where no action follows, that alone."""
    doubt = (f"not settled {unsettled}",) if unsettled else ()
    return doubt if unsettled == WHETHER_DRAFTING else (action, *doubt)


def _settings(choice: str, found: Sequence[Comparison]) -> str:
    """What is advised at which batches, and the gains."""
    settings = ", ".join(
        dict.fromkeys(
            f"{'' if choice == STOP else f'{each.advised} at '}"
            f"batch {each.scenario.batches}"
            for each in found
        )
    )
    if choice == STOP:
        return settings
    values = sorted(each.advised.over[AR].value for each in found)
    gains = [f"{100.0 * (value - 1.0):+.0f}" for value in values]
    span = " to ".join(dict.fromkeys((gains[0], gains[-1])))
    return f"{settings}; {span} % against plain decoding"


def _estimated(found: Sequence[Comparison]) -> str:
    """The error of an estimated table; after the sentences that it leaves open."""
    ends = [end for each in found for end in each.estimate]
    if not ends:
        return ""
    low, high = (100.0 * (end - 1.0) for end in (min(ends), max(ends)))
    return (
        " Steps are estimated by kernels and drafting alone, where advise averages "
        f"kernels with steps of other servers; its error of {low:+.0f} to {high:+.0f} "
        "% (95 %) is in no interval here, so nothing is settled."
    )


def _break_even(found: Comparison) -> Iterator[str]:
    """Where speculation, by its step time, and adapting, by drafting, stop paying.

    A setting that commits c tokens a step equals plain decoding where its step takes c
    plain steps. Two policies of c tokens, s us and d levels a step are equally fast
    where a level takes y us more: c / (s + y d) = c' / (s' + y d').
    """
    plain, fixed, adaptive = found.of(AR), found.strongest, found.adaptive
    if fixed.depth.value:
        step = fixed.step_us.value / plain.step_us.value
        yield (
            f"Speculation stops paying where a step of {fixed.verified.value:.1f} "
            f"tokens takes more than {fixed.committed.value:.2f} plain steps "
            f"(estimated {step:.2f})."
        )
    (c, s, d), (cf, sf, df) = (
        (each.committed.value, each.step_us.value, each.depth.value)
        for each in (adaptive, fixed)
    )
    slower, faster = c * sf - cf * s, cf * d - c * df
    if slower > 0.0 and faster > 0.0:
        draft_us = adaptive.draft_us.value
        limit_ms = (draft_us + d * slower / faster) / 1e3
        yield (
            f"Adapting stops paying where {d:.1f} levels take more than {limit_ms:.2f} "
            f"ms (estimated {draft_us / 1e3:.2f})."
        )
