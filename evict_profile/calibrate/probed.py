"""A probed server's waves, and which are left out.

A wave is left out if it ran beside others' requests, or if its round's smallest batch
was more than 10 % slower than its median.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evict_profile.calibrate.served import ServedRun
from evict_profile.config.load import known_models, model_named
from evict_profile.errors import ConfigError
from evict_profile.probe.record import Probed, Wave, fault_of, read_probe
from evict_profile.probe.server import ServerInfo, check_one_deployment
from evict_profile.stats import Estimate, student

SLOW = 1.1

BUSY = "requests of others ran beside it; probe the server when it is idle"
SLOWED = "its round was slow; let nothing else use the machine"


@dataclass(frozen=True)
class ProbedSetting:
    """One batch of one server: its runs, and why other waves were left out."""

    server: ServerInfo
    batch: int
    runs: tuple[ServedRun, ...]
    left_out: tuple[str, ...]
    texts: str = "chat"

    @property
    def committed(self) -> float:
        """Tokens a step and request."""
        return float(np.mean([run.committed for run in self.runs]))

    @property
    def step_us(self) -> Estimate:
        """The whole step, with the 95 % interval of its waves' mean."""
        logs = np.log([run.step_us for run in self.runs])
        if len(logs) < 2:
            return Estimate(float(np.exp(logs[0])), 0.0, np.inf)
        error = float(logs.std(ddof=1)) / len(logs) ** 0.5
        half_width = student(len(logs) - 1) * error
        ends = np.array([0.0, -half_width, half_width])
        return Estimate(*np.exp(logs.mean() + ends).tolist())


def settings(path: Path) -> list[ProbedSetting]:
    found = read_probe(path)
    return [each for probed, waves in found for each in _of(probed, waves)]


def check_servers(settings: Sequence[ProbedSetting], model: str) -> None:
    check_one_deployment([each.server for each in settings])
    known = [path.stem for path in known_models()]
    for name in {each.server.model for each in settings}:
        served, given = model_named(name, known), model_named(model, known)
        if served and given and served != given:
            raise ConfigError(
                f"the server's model is {name}, and {model} was given; name the model "
                "or the table of the server"
            )


def _of(probed: Probed, waves: Sequence[Wave]) -> Iterator[ProbedSetting]:
    about = probed.server
    faults = _faults(about, waves)
    for batch in sorted({wave.batch for wave in waves}):
        own = [each for each in faults if each[0].batch == batch]
        runs = tuple(_run(about, wave) for wave, why in own if not why)
        left_out = tuple(why for _, why in own if why)
        faulty = sum(bool(fault_of(about, wave)) for wave, _ in own)
        if 2 * faulty > len(own) or not runs:
            raise ConfigError(
                f"{about.url}: {len(left_out)} of {len(own)} waves at batch {batch} "
                f"show no step: {max(set(left_out), key=left_out.count)}"
            )
        yield ProbedSetting(about, batch, runs, left_out, probed.text)


def _faults(about: ServerInfo, waves: Sequence[Wave]) -> list[tuple[Wave, str]]:
    """Each wave, and why it is left out; "" if it is not."""
    whole = [wave for wave in waves if not fault_of(about, wave)]
    least = min((each.batch for each in waves), default=0)
    rates = {each.round: _step(each) for each in whole if each.batch == least}
    limit = SLOW * float(np.median(list(rates.values()))) if rates else np.inf
    slow = {number for number, step in rates.items() if step > limit}
    whys = ((BUSY if b.others else SLOWED if b.round in slow else "") for b in waves)
    return [(b, fault_of(about, b) or why) for b, why in zip(waves, whys, strict=True)]


def _step(wave: Wave) -> float:
    return (wave.accepted or 1.0) * wave.batch / wave.tokens_per_s


def _run(about: ServerInfo, wave: Wave) -> ServedRun:
    return ServedRun(
        wave.batch, about.drafts + 1, about.levels, about.topk, wave.accepted or 1.0,
        wave.tokens_per_s, wave.context,
    )  # fmt: skip
