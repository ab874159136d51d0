"""Settings of a server: its probed waves, which of them are left out, or its runs.

A wave is left out if it ran beside others' requests, if its round's smallest batch was
more than 10 % slower than its median, or if it drafted otherwise than the others of its
batch. A server may draft another K at another batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import Struct

from evict_profile.calibrate.served import ServedRun
from evict_profile.config.load import known_models, model_named
from evict_profile.errors import ConfigError
from evict_profile.records import Amount, NotNegative, Positive
from evict_profile.served.probe.record import (
    Probed,
    Wave,
    drafted_of,
    near,
    read_probe,
    step_fault,
)
from evict_profile.served.probe.server import ServerInfo, check_one_deployment
from evict_profile.stats import Estimate, student
from evict_profile.table.overheads import TWO_SIDED

SLOW, REPEATED = 1.1, 1.3
"""Ratios of steps: of a round to the median beyond which it is left out, and of two
published runs beyond which they are not of one setting."""

PUBLISHED, PUBLISHED_SD = "published", 0.05
"""Runs that no probe timed, and the standard deviation of the log of one of their
steps: four plain settings of `benchmarks/served/data/new-2026.csv` ran twice."""

BUSY = "requests of others ran beside it; probe the server when it is idle"
SLOWED = "its round was slow; let nothing else use the machine"


class Load(Struct, frozen=True, kw_only=True):
    """What a benchmark states of a run's requests; None where it does not.

    Of those completed, `at_once` ran in the mean, and with `equal_lengths` all have one
    input and one output length. `prefill` is the share of a request's time before its
    first token, which is in the run's time if it `has_prefill`. `drafted` is by step.
    """

    prompts: str | int = ""
    temperature: NotNegative | None = None
    requests: Amount | None = None
    failed: Amount = 0
    at_once: Positive | None = None
    prefill: NotNegative | None = None
    has_prefill: bool = False
    drafted: NotNegative | None = None
    equal_lengths: bool = False


@dataclass(frozen=True)
class ProbedSetting:
    """One batch of one server: its runs, and why other waves were left out.

    Attributes:
        texts: "chat", "raw" or "published".
        drafted: tokens drafted a step, if they are not the server's K.
        loads: of published runs, one each.
    """

    server: ServerInfo
    batch: int
    runs: tuple[ServedRun, ...]
    left_out: tuple[str, ...]
    texts: str = "chat"
    drafted: float | None = None
    loads: tuple[Load, ...] = ()

    @property
    def drafts(self) -> int:
        """K at this batch, if it `is_fixed`."""
        return self.server.drafts if self.drafted is None else round(self.drafted)

    @property
    def is_fixed(self) -> bool:
        """Whether each step drafts the same K."""
        counted = self.drafted is None or near(self.drafted, self.drafts)
        return counted and not self.server.adaptive

    @property
    def speculation(self) -> str:
        if self.drafted is None:
            return self.server.speculation
        return f"K = {self.drafts if self.is_fixed else f'{self.drafted:.2f}'}"

    @property
    def committed(self) -> float:
        """Tokens a step and request."""
        return float(np.mean([run.committed for run in self.runs]))

    @property
    def states_accepted(self) -> bool:
        return self.committed > 1.0 or not self.server.drafts

    @property
    def step_us(self) -> Estimate:
        """The whole step, with the 95 % interval of its runs' mean."""
        logs = np.log([run.step_us for run in self.runs])
        if self.texts == PUBLISHED:
            half_width = TWO_SIDED * PUBLISHED_SD / len(logs) ** 0.5
        elif len(logs) < 2:
            return Estimate(float(np.exp(logs[0])), 0.0, np.inf)
        else:
            error = float(logs.std(ddof=1)) / len(logs) ** 0.5
            half_width = student(len(logs) - 1) * error
        ends = np.array([0.0, -half_width, half_width])
        return Estimate(*np.exp(logs.mean() + ends).tolist())


def settings(path: Path) -> list[ProbedSetting]:
    found = read_probe(path)
    return [each for probed, waves in found for each in _of(probed, waves)]


def check_servers(settings: Sequence[ProbedSetting], model: str) -> None:
    check_one_deployment([each.server for each in settings])
    for each in settings:
        if not each.is_fixed:
            raise ConfigError(
                f"{each.server.url}: at batch {each.batch} steps draft different "
                f"numbers of tokens ({each.speculation}), and a table needs steps of "
                "one K; start the server without --speculative-adaptive, without "
                "the plug-in, and with a method that drafts at every step"
            )
        steps_ms = sorted(run.step_us / 1e3 for run in each.runs)
        if each.texts == PUBLISHED and steps_ms[-1] > REPEATED * steps_ms[0]:
            raise ConfigError(
                f"{each.server.url}: steps of {each.speculation} at batch {each.batch} "
                f"take {steps_ms[0]:.2f} and {steps_ms[-1]:.2f} ms, as of several "
                "deployments; give each a file of its own"
            )
    known = [path.stem for path in known_models()]
    for name in {each.server.model for each in settings}:
        served, given = model_named(name, known), model_named(model, known)
        if served and given and served != given:
            raise ConfigError(
                f"the server's model is {name}, and {model} was given; name the model "
                "or the table of the server"
            )


def _of(probed: Probed, waves: Sequence[Wave]) -> Iterator[ProbedSetting]:
    about, slow = probed.server, _slow_rounds(probed.server, waves)
    for batch in sorted({wave.batch for wave in waves}):
        own = [wave for wave in waves if wave.batch == batch]
        empty = ProbedSetting(about, batch, (), (), probed.text, _drafted(about, own))
        whys = [_why(empty, wave, wave.round in slow) for wave in own]
        left_out = tuple(filter(None, whys))
        faulty = sum(bool(step_fault(about, wave)) for wave in own)
        if 2 * faulty > len(own) or len(left_out) == len(own):
            raise ConfigError(
                f"{about.url}: {len(left_out)} of {len(own)} waves at batch {batch} "
                f"show no step: {max(set(left_out), key=left_out.count)}"
            )
        both = zip(own, whys, strict=True)
        runs = tuple(_run(empty, wave) for wave, why in both if not why)
        yield replace(empty, runs=runs, left_out=left_out)


def _drafted(about: ServerInfo, waves: Sequence[Wave]) -> float | None:
    """Tokens drafted a step, a median; None if they are the server's K."""
    whole = [wave for wave in waves if not step_fault(about, wave)]
    drafted = [drafted_of(about, wave) for wave in whole] or [about.drafts]
    median = float(np.median(drafted))
    return None if near(median, about.drafts) else median


def _why(setting: ProbedSetting, wave: Wave, is_slow: bool) -> str:
    """Why a wave is left out; "" if it is not."""
    if fault := step_fault(setting.server, wave):
        return fault
    drafted = drafted_of(setting.server, wave)
    if setting.is_fixed and not near(drafted, setting.drafts):
        return f"{drafted:.2f} tokens were drafted a step, and {setting.drafts} usually"
    return BUSY if wave.others else SLOWED if is_slow else ""


def _slow_rounds(about: ServerInfo, waves: Sequence[Wave]) -> set[int]:
    """Rounds whose smallest batch was slow."""
    whole = [wave for wave in waves if not step_fault(about, wave)]
    least = min((each.batch for each in waves), default=0)
    rates = {each.round: _step(each) for each in whole if each.batch == least}
    limit = SLOW * float(np.median(list(rates.values()))) if rates else np.inf
    return {number for number, step in rates.items() if step > limit}


def _step(wave: Wave) -> float:
    return (wave.accepted or 1.0) * wave.batch / wave.tokens_per_s


def _run(setting: ProbedSetting, wave: Wave) -> ServedRun:
    """A server that drafts another K than it states drafts a chain."""
    about, k = setting.server, setting.drafts
    levels = about.levels if k == about.drafts else k
    return ServedRun(
        wave.batch, k + 1, levels, about.topk, wave.accepted or 1.0,
        wave.tokens_per_s, wave.context,
    )  # fmt: skip
