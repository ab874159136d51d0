"""A server's own steps, from its runs, beside those that a table predicts.

A batch's plain runs give its plain step. Those that draft add one number, the growth of
a step by drafting over the predicted growth. Three quarters of it scale with the
prediction of another setting, and a quarter stays: with all of it, larger trees are
overestimated (`python -m benchmarks.served`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import OWN_GROWTH, RECORD, Overheads, OwnStep

SCALES = 0.75
"""Share of the measured growth that scales with the predicted one."""

HOST_BOUND = 2.0
"""Measured growth over predicted, beyond which the host bounds the step: other
settings take as long, unless their forward is predicted to take longer."""

FASTER, SLOWER = 0.8, 1.25
"""A drafting step over its prediction, outside of which a cause is named."""

FASTEST, SLOWEST = 0.77, 20.0
"""A plain step over its kernels' sum, outside of which runs are refused."""


@dataclass(frozen=True)
class ServedRun:
    """One setting of a server under one load.

    Attributes:
        width: tokens a request verifies; 1 decodes plainly.
        committed: tokens a step and request, the accepted length; 1 of a plain run.
        tokens_per_s: decoded in all, prefill and queues left out.
        context: mean tokens in a request's KV cache.
    """

    batch: int
    width: int
    levels: int
    topk: int
    committed: float
    tokens_per_s: float
    context: float

    @property
    def step_us(self) -> float:
        return 1e6 * self.batch * self.committed / self.tokens_per_s


@dataclass(frozen=True)
class ServedStudy:
    """Runs, and their steps as the table predicts them before and after, in us."""

    runs: tuple[ServedRun, ...]
    predicted_us: tuple[float, ...]
    explained_us: tuple[float, ...]
    found: Overheads

    @property
    def meaning(self) -> str:
        drafts = any(run.width > 1 for run in self.runs)
        pairs = zip(self.runs, self.predicted_us, strict=True)
        asked = [r.step_us / us for r, us in pairs if r.width > 1 or not drafts]
        times = np.median(asked)
        what = "drafting" if drafts else "plain"
        said = f"Measured {what} step: {times:.2f} of the default prediction"
        if not drafts:
            return f"{said}. Add a run that drafts: it narrows the intervals."
        if not FASTER < times < SLOWER:
            said += "; check K, the accepted length, CUDA graphs and overlap scheduling"
        if bound := [str(each.batch) for each in self.found.own if each.floor_us]:
            said += f"; the host bounds it at batch {', '.join(bound)}"
        return f"{said}."


def study(table: CostTable, runs: Sequence[ServedRun], source: str) -> ServedStudy:
    """Learn a server's own steps; the error is known near the batches that drafted."""
    table = replace(table, overheads=None)
    _check_covered(table, runs)
    known = replace(table, overheads=ServedStep.of(table).overheads or RECORD)
    found = own_overheads(known, runs, source)
    steps = (_steps(each, runs) for each in (known, replace(table, overheads=found)))
    before, after = (tuple(us for us, _ in each) for each in steps)
    return ServedStudy(tuple(runs), before, after, found)


def own_overheads(
    table: CostTable, runs: Sequence[ServedRun], source: str
) -> Overheads:
    """The overheads of a table, with the steps of the server that had these runs."""
    known, batches = table.overheads or RECORD, sorted({run.batch for run in runs})
    own = [_own_step(table, [r for r in runs if r.batch == batch]) for batch in batches]
    found = replace(known, source=source, runs=len(runs), own=tuple(own))
    drafted = sorted({run.batch for run in runs if run.width > 1})
    if not drafted:
        # How much of the host's time a drafting step repeats is not known.
        unknown = max(math.log(max(each.plain, 1.0)) for each in own)
        return replace(found, growth=math.hypot(known.growth, unknown))
    growth = min(OWN_GROWTH, max(map(known.growth_at, drafted)))
    return replace(found, growth=growth, batches=tuple(drafted))


def _own_step(table: CostTable, runs: Sequence[ServedRun]) -> OwnStep:
    """The step of one batch, from plain runs and, if any, those that draft."""
    batch, drafts = runs[0].batch, np.array([run.width > 1 for run in runs])
    if drafts.all():
        raise ConfigError(
            f"batch {batch} needs a plain run; add one (K = 0), or leave that batch out"
        )
    served_us = np.array([run.step_us for run in runs])
    us, beside_us = np.array(_steps(table, runs)).T
    plain_us = float(served_us[~drafts].mean())
    plain = plain_us / float(us[~drafts].mean())
    if not drafts.any():
        return OwnStep.of_plain(batch, plain)
    beyond_us = max(float(served_us[drafts].mean()) - plain_us, 0.0)
    scale = beyond_us / (plain * float(us[drafts].mean()) - plain_us)
    if scale > HOST_BOUND:
        floor_us = beyond_us - plain * float(beside_us[drafts].mean())
        return OwnStep(batch, plain, 1.0, floor_us=max(floor_us, 0.0))
    return OwnStep(batch, plain, SCALES * scale, (1.0 - SCALES) * beyond_us)


def _steps(table: CostTable, runs: Sequence[ServedRun]) -> list[tuple[float, float]]:
    """Predicted steps of runs, and their time beside the forward, in microseconds."""
    served = {run.topk: ServedStep.of(table, topk=run.topk) for run in runs}
    found = []
    for run in runs:
        step = served[run.topk]
        context = float(np.clip(run.context, *table.contexts(run.batch)))
        us = step.us(run.batch, run.width, run.levels, context).value
        rest_us = float(step.table.rest_us(run.batch * run.width, run.batch))
        found.append((us, step.beside_us(run.batch, run.levels) + rest_us))
    return found


def _check_covered(table: CostTable, runs: Sequence[ServedRun]) -> None:
    for run in runs:
        tokens, most = run.batch * run.width, table.max_tokens(run.batch)
        if tokens > most or run.batch > table.fit.domain["batch"][1]:
            raise ConfigError(
                f"{table.path}: does not cover {tokens} tokens of {run.batch} "
                "requests; leave that run out"
            )
        context = float(np.clip(run.context, *table.contexts(run.batch)))
        kernels_us = table.costs(run.batch, context).step_cost_us[run.batch]
        if run.width == 1 and not FASTEST < run.step_us / kernels_us < SLOWEST:
            raise ConfigError(
                f"a plain step at batch {run.batch} was served in "
                f"{run.step_us / 1e3:.2f} ms, and the table's kernels take "
                f"{kernels_us / 1e3:.2f} ms: check the table's GPU, TP and dtype, and "
                "the units of the runs"
            )
