"""The verdict: do not speculate, fix a setting, or adapt; by how much, and how sure.

The simplest policy that will do is advised. Each step up in effort, from plain decoding
to the strongest setting that knows no cost and from that to a policy that reads a
table, must gain more than one per cent, with an interval above no gain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from evict_profile.replay.compare import WORTHWHILE, Comparison, Scenario
from evict_profile.replay.policies import AR
from evict_profile.stats import Estimate

Action = Literal["adapt", "fix a setting", "do not speculate"]
ACTIONS: tuple[Action, ...] = ("adapt", "fix a setting", "do not speculate")


@dataclass(frozen=True)
class Verdict:
    """What to do in one scenario.

    Attributes:
        policy: the policy that is advised.
        gain: its throughput over plain decoding.
        fixed: the strongest policy that knows no cost, with what it was set to in
            hindsight: a width, a depth and width, or a threshold.
        adaptive: the strongest policy that reads a table. Either is the simplest of
            those as good, and judged by what is expected of it on other prompts
            (`replay.compare`).
        fixed_over_plain, adaptive_over_plain, adaptive_over_fixed: throughputs
            compared; the choice follows from them.
        settled: whether the intervals settle the choice.
        sure: whether it is settled, and drafting was measured.
        assumptions: what the choice rests on and nobody measured.
        break_even: where the choice would change, in sentences.
    """

    scenario: Scenario
    choice: Action
    policy: str
    gain: Estimate
    fixed: str
    adaptive: str
    fixed_over_plain: Estimate
    adaptive_over_plain: Estimate
    adaptive_over_fixed: Estimate
    settled: bool
    sure: bool
    assumptions: tuple[str, ...]
    break_even: tuple[str, ...]

    @property
    def advised(self) -> str:
        """The policy that is advised, with its setting where that is all it takes."""
        return self.fixed if self.choice == "fix a setting" else self.policy

    def __str__(self) -> str:
        action = {
            "adapt": f"adapt with “{self.policy}”",
            "fix a setting": f"fix a setting, {self.fixed}",
            "do not speculate": "do not speculate",
        }[self.choice]
        return (
            f"{self.scenario}: {action}. Against plain decoding {self.fixed}, the "
            f"strongest setting that knows no cost, gives "
            f"{percent(self.fixed_over_plain)}, “{self.adaptive}” "
            f"{percent(self.adaptive_over_plain)}; against that setting "
            f"“{self.adaptive}” gives {percent(self.adaptive_over_fixed)}"
            f"{'.' if self.settled else ', within the intervals.'}"
            f"{''.join(f' {each}' for each in self.break_even)}"
            f"{''.join(f' Assumed: {each}.' for each in self.assumptions)}"
        )


def judge(comparison: Comparison) -> Verdict:
    """The verdict on one scenario."""
    fixed, adaptive = comparison.strongest, comparison.adaptive
    pays = worthwhile(adaptive.over[AR])
    choice: Action = "do not speculate"
    if pays and worthwhile(adaptive.over[fixed.policy]):
        choice, advised, settled = "adapt", adaptive, True
    elif worthwhile(fixed.over[AR]):
        choice, advised = "fix a setting", fixed
        settled = adaptive.over[fixed.policy].high < WORTHWHILE
    elif pays:
        choice, advised, settled = "adapt", adaptive, False
    else:
        advised = comparison.of(AR)
        best = max(adaptive, fixed, key=lambda each: each.tokens_per_s.value)
        settled = best.over[AR].high < WORTHWHILE
    return Verdict(
        scenario=comparison.scenario,
        choice=choice,
        policy=advised.policy,
        gain=advised.over[AR],
        fixed=str(fixed),
        adaptive=adaptive.policy,
        fixed_over_plain=fixed.over[AR],
        adaptive_over_plain=adaptive.over[AR],
        adaptive_over_fixed=adaptive.over[fixed.policy],
        settled=settled,
        sure=settled and not comparison.drafting_is_assumed,
        assumptions=comparison.assumptions,
        break_even=tuple(break_even(comparison)),
    )


def break_even(comparison: Comparison) -> Iterator[str]:
    """The step at which speculation, and the drafting at which adapting, pays nothing.

    A setting that commits c tokens a step equals plain decoding where its step takes c
    plain steps. Two policies of c tokens, s us and d levels a step are equally fast
    where a level takes y us more: c / (s + y d) = c' / (s' + y d').
    """
    plain, fixed = comparison.of(AR), comparison.strongest
    step = fixed.step_us.value / plain.step_us.value
    if fixed.depth.value:
        yield (
            f"Speculation stops paying where a step of {fixed.verified.value:.1f} "
            f"tokens takes more than {fixed.committed.value:.2f} plain steps "
            f"(estimated {step:.2f})."
        )
    (c, s, d, draft_us), (cf, sf, df, _) = (
        [
            getattr(each, name).value
            for name in ("committed", "step_us", "depth", "draft_us")
        ]
        for each in (comparison.adaptive, fixed)
    )
    slower, faster = c * sf - cf * s, cf * d - c * df
    if slower > 0.0 and faster > 0.0:
        limit_ms = (draft_us + d * slower / faster) / 1e3
        yield (
            f"Adapting stops paying where {d:.1f} levels take more than {limit_ms:.2f} "
            f"ms (estimated {draft_us / 1e3:.2f})."
        )


def worthwhile(ratio: Estimate) -> bool:
    """Whether it is more than one per cent, with an interval above no gain."""
    return ratio.value > WORTHWHILE and ratio.above_one


def percent(ratio: Estimate) -> str:
    """A ratio as a change with its interval: "+12.3 % (+8.1 to +15.0)"."""
    change = f"{100.0 * (ratio.value - 1.0):+.1f} %"
    if not ratio.known:
        return change
    low, high = (100.0 * (end - 1.0) for end in (ratio.low, ratio.high))
    return f"{change} ({low:+.1f} to {high:+.1f})"


def summary(verdicts: Sequence[Verdict]) -> str:
    """How often each choice is advised, and what it gains against plain decoding."""
    sentences = []
    for choice in ACTIONS:
        made = [verdict for verdict in verdicts if verdict.choice == choice]
        if made:
            where = f"{choice.capitalize()} in {len(made)} of {len(verdicts)}"
            sentences.append(f"{where} scenarios{_gains(choice, made)}.")
    unsettled = sum(not verdict.settled for verdict in verdicts)
    if unsettled:
        sentences.append(
            f"In {unsettled} of {len(verdicts)} the intervals do not settle the "
            "choice, and the simpler policy is advised."
        )
    if any(verdict.settled and not verdict.sure for verdict in verdicts):
        sentences.append("Drafting is assumed, so no choice is sure.")
    return " ".join(sentences)


def _gains(choice: Action, verdicts: Sequence[Verdict]) -> str:
    if choice == "do not speculate":
        return ""
    gains = [
        f"{100.0 * (v - 1.0):+.0f}" for v in sorted(v.gain.value for v in verdicts)
    ]
    span = " to ".join(dict.fromkeys((gains[0], gains[-1])))
    return f": {span} % against plain decoding"
