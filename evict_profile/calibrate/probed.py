"""What the waves of a probed server say together, and which are left out.

A wave is left out where requests of others ran beside it, or where the plainest work of
its round, the smallest batch, took much longer than it mostly does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evict_profile.calibrate.served import ServedRun
from evict_profile.errors import ConfigError
from evict_profile.probe.record import Block, read_probe
from evict_profile.probe.server import About
from evict_profile.stats import Estimate, student

SLOW = 1.1
"""A reference over its median, from which the round counts as disturbed."""


@dataclass(frozen=True)
class Setting:
    """One batch of one server: its runs, and how many of its waves were left out."""

    server: About
    batch: int
    runs: tuple[ServedRun, ...]
    left_out: int

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
        reach = student(len(logs) - 1) * error
        return Estimate(*np.exp(logs.mean() + np.array([0.0, -reach, reach])).tolist())


def settings(path: Path) -> list[Setting]:
    """Each setting of a file, in the order probed."""
    found = read_probe(path)
    return [each for probed, waves in found for each in _of(probed.server, waves)]


def _of(about: About, blocks: Sequence[Block]) -> Iterator[Setting]:
    """The settings of one server; those without an accepted length are none."""
    used = [block for block in blocks if not _disturbed(block, blocks)]
    for batch in sorted({block.batch for block in blocks}):
        runs = tuple(_run(about, block) for block in used if block.batch == batch)
        if runs:
            whole = sum(block.batch == batch for block in blocks)
            yield Setting(about, batch, runs, whole - len(runs))


def _disturbed(block: Block, blocks: Sequence[Block]) -> bool:
    """Whether others ran beside it, or its round's reference was slow."""
    least = min(each.batch for each in blocks)
    rates = {each.round: _step(each) for each in blocks if each.batch == least}
    usual = float(np.median(list(rates.values())))
    return block.others > 0 or rates.get(block.round, usual) > SLOW * usual


def _step(block: Block) -> float:
    return (block.accepted or 1.0) * block.batch / block.tokens_per_s


def _run(about: About, block: Block) -> ServedRun:
    if about.drafts and block.accepted is None:
        raise ConfigError(
            f"{about.url}: drafts, and stated no accepted length, so that its "
            "steps are not known; start it with metrics and probe it again"
        )
    return ServedRun(
        block.batch, about.drafts + 1, about.levels, about.topk, block.accepted or 1.0,
        block.tokens_per_s, block.context,
    )  # fmt: skip
