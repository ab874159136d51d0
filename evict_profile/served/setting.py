"""A setting of a server: the runs of one batch, draft and context.

The step is the geometric mean of its runs. Runs of several texts are compared text by
text, and the spread over texts is in the interval, because another text is as far from
them as they are from one another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.served.run import Run
from evict_profile.stats import Estimate, Floats, student

ONE_RUN_SD = 0.05
"""Of the log of one run's step: four plain settings of
`benchmarks/served/data/new-2026.csv` ran twice."""

FEWEST = 3
"""Starts of a server whose own spread is used; fewer have `ONE_RUN_SD`."""

TWO_SIDED = 1.96
REPEATED = 1.3
"""Ratio of two steps of one setting, above which they are of several deployments, or
of a noisy machine, which the spread of `FEWEST` runs shows."""

SAME_CONTEXT = 1.25
"""Ratio of two mean contexts up to which runs are of one context."""


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but their text.

    Attributes:
        context: mean tokens in a request's cache; None if no run states it.
    """

    runs: tuple[Run, ...]

    @property
    def batch(self) -> int:
        return self.runs[0].batch

    @property
    def drafts(self) -> int:
        return self.runs[0].drafts

    @property
    def width(self) -> int:
        return self.runs[0].width

    @property
    def levels(self) -> int:
        return self.runs[0].levels

    @property
    def is_chain(self) -> bool:
        return self.width == self.levels + 1

    @property
    def context(self) -> float | None:
        known = [run.context for run in self.runs if run.context is not None]
        return float(np.mean(known)) if known else None

    @property
    def draft(self) -> str:
        """ "K = 3"."""
        tree = f", {self.width} tokens verified" * (self.width != self.drafts + 1)
        return f"K = {self.drafts}{tree}" if self.drafts else "plain decoding"

    @property
    def name(self) -> str:
        """ "K = 3 at batch 8"."""
        return f"{self.draft} at batch {self.batch}"

    @cached_property
    def step_us(self) -> Estimate:
        """The geometric mean of the runs' steps."""
        mean, half = _mean(self.runs)
        return Estimate(*(math.exp(mean + end) for end in (0.0, -half, half)))

    @cached_property
    def accept_length(self) -> Estimate | None:
        """The mean of what runs state, with the 95 % interval of the mean."""
        lengths = [n for run in self.runs if (n := run.accept_length) is not None]
        if not lengths:
            return None
        mean = float(np.mean(lengths))
        if len(lengths) < FEWEST:
            return Estimate(mean, min(lengths), max(lengths))
        error = float(np.std(lengths, ddof=1)) / len(lengths) ** 0.5
        half = student(len(lengths) - 1) * error
        return Estimate(mean, mean - half, mean + half)

    def ratio_to(self, other: "Setting") -> Estimate:
        """This setting's step over another's, text by text where both state texts."""
        own, theirs = self._by_text, other._by_text
        texts = sorted(own.keys() & theirs.keys() - {""})
        if not texts:
            return _ratio(self.runs, other.runs)
        each = [_ratio(own[text], theirs[text]) for text in texts]
        logs = np.log([ratio.value for ratio in each])
        noise = [math.log(ratio.high / ratio.value) for ratio in each]
        half = math.hypot(float(np.linalg.norm(noise)) / len(noise), spread(logs))
        mean = float(logs.mean())
        return Estimate(*(math.exp(mean + end) for end in (0.0, -half, half)))

    @property
    def _by_text(self) -> Mapping[str, tuple[Run, ...]]:
        texts = sorted({run.text for run in self.runs})
        return {t: tuple(run for run in self.runs if run.text == t) for t in texts}


def settings_of(runs: Sequence[Run]) -> tuple[Setting, ...]:
    """Runs with a step, grouped by what they ran; the smallest batch and K first."""
    timed = [run for run in runs if run.step_us]
    contexts = _contexts(timed)
    groups: dict[tuple[int, ...], list[Run]] = {}
    for run in timed:
        context = contexts[run.context or 0.0]
        place = (run.batch, context, run.width, run.levels, run.topk)
        groups.setdefault(place, []).append(run)
    return tuple(Setting(tuple(own)) for _, own in sorted(groups.items()))


def _contexts(runs: Sequence[Run]) -> dict[float, int]:
    """The number of each context among those that lie apart; 0 if not stated."""
    stated = sorted({run.context for run in runs if run.context})
    number, numbers, first = 0, {0.0: 0}, 0.0
    for context in stated:
        if context > SAME_CONTEXT * first:
            number, first = number + 1, context
        numbers[context] = number
    return numbers


def same_context(one: Setting, other: Setting) -> bool:
    """Whether two settings have one mean context, or one of them states none."""
    return near_context(one.context, other.context)


def near_context(one: float | None, other: float | None) -> bool:
    if not (one and other):
        return True
    return max(one, other) <= SAME_CONTEXT * min(one, other)


def check_repeats(setting: Setting) -> None:
    """Refuse two runs of one text whose steps lie too far apart; more show noise."""
    for text, runs in setting._by_text.items():
        steps_ms = sorted(run.step_us / 1e3 for run in runs if run.step_us)
        if len(runs) < FEWEST and steps_ms[-1] > REPEATED * steps_ms[0]:
            where = f" of text {text}" if text else ""
            raise ConfigError(
                f"{runs[0].source}: steps of {setting.name}{where} take "
                f"{steps_ms[0]:.2f} and {steps_ms[-1]:.2f} ms, as of several servers; "
                "give each a file of its own, or name texts in a column text"
            )


def _mean(runs: Sequence[Run]) -> tuple[float, float]:
    """The mean log of steps, and half of its 95 % interval.

    Parts of a log have one start of the server in common, and so one mean.
    """
    starts = dict[str, list[float]]()
    for number, run in enumerate(runs):
        if run.step_us:
            starts.setdefault(run.start or str(number), []).append(
                math.log(run.step_us)
            )
    logs = [float(np.mean(parts)) for parts in starts.values()]
    if len(logs) >= FEWEST:
        return float(np.mean(logs)), _half_of_mean(logs)
    within = [_half_of_mean(p) for p in starts.values() if len(p) >= FEWEST]
    half = TWO_SIDED * ONE_RUN_SD / len(logs) ** 0.5
    return float(np.mean(logs)), math.hypot(half, *(w / len(logs) for w in within))


def _half_of_mean(logs: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, from the spread of `FEWEST` or more."""
    error = float(np.std(logs, ddof=1)) / len(logs) ** 0.5
    return float(student(len(logs) - 1) * error)


def _ratio(own: Sequence[Run], others: Sequence[Run]) -> Estimate:
    (one, half), (other, other_half) = (_mean(runs) for runs in (own, others))
    half = math.hypot(half, other_half)
    return Estimate(*(math.exp(one - other + end) for end in (0.0, -half, half)))


def spread(logs: Floats) -> float:
    """Half of the 95 % interval of one more text, from those that ran."""
    if len(logs) < FEWEST:
        return float(np.ptp(logs)) / 2.0
    sd = float(np.std(logs, ddof=1))
    return float(student(len(logs) - 1) * sd * (1.0 + 1.0 / len(logs)) ** 0.5)
