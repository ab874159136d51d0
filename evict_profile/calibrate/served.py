"""Overheads of a server from its runs.

Log ratios of steps are fitted by least squares to the model of `table.overheads`. The
prior is other deployments' amounts and their spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import astuple, replace
from scipy.optimize import least_squares

from evict_profile.cost_model import padded_tokens
from evict_profile.errors import ConfigError
from evict_profile.stats import Floats
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import OWN_GROWTH, RECORD, Amounts, Overheads

LEVEL_SD, RATIO_SD = 0.1, 0.06
"""Unexplained errors of a plain step and of a step over it, sd of logs."""

OWN_LAYERS_US = 100.0
"""Standard deviation of time per layer, once plain decoding is measured."""

FIXED, WIDER = ("layer_us", "round_us", "level_us"), 10.0
"""Times independent of tokens, and the factor on their prior sd if a run is off by more
than `RATIO_SD` otherwise: the host may bind such a server."""

FASTER, SLOWER = 0.8, 1.25
"""A drafting step over its prediction, outside of which a cause is named."""

UNEXPLAINED = 1.3
"""A step this many times off its prediction is refused."""

LARGEST = Amounts(1.05, 2_000.0, 1_000.0, 50_000.0, 20_000.0, 5_000.0)


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
class Deployment:
    """A server's runs, and the table of its model, GPU and engine without overheads."""

    table: CostTable
    runs: tuple[ServedRun, ...]

    def __post_init__(self) -> None:
        if not self.plain or len(self.plain) == len(self.runs):
            raise ConfigError(
                "runs of a server need a plain one and one that drafts, of the same "
                "batch; without the first drafting cannot be separated from the rest"
            )

    @property
    def plain(self) -> tuple[ServedRun, ...]:
        return tuple(run for run in self.runs if run.width == 1)

    @property
    def served_us(self) -> Floats:
        return np.array([run.step_us for run in self.runs])

    def step_us(self, amounts: Amounts) -> Floats:
        return np.array([_step_us(self.table, run, amounts) for run in self.runs])

    def errors(self, amounts: Amounts) -> tuple[Floats, Floats]:
        """Log of predicted over served: of plain steps, and of drafting ones over them.

        A drafting run is divided by the mean of the plain runs at the nearest batch.
        """
        off = np.log(self.step_us(amounts) / self.served_us)
        drafts = np.array([run.width > 1 for run in self.runs])
        batch = np.log([run.batch for run in self.runs])
        apart = np.abs(batch[drafts, None] - batch[None, ~drafts])
        near = apart == apart.min(axis=1, keepdims=True)
        return off[~drafts], off[drafts] - near @ off[~drafts] / near.sum(axis=1)


def _step_us(table: CostTable, run: ServedRun, amounts: Amounts) -> float:
    asked = np.array(run.batch * run.width)
    tokens = padded_tokens(asked, run.batch, table.axes.capture_sizes)
    union = table.activation.at(tokens, run.batch)
    if table.activation.is_guess:
        union = amounts.union(union, table.model.moe.top_k)
    forward_us = float(table.cost.latency_us(tokens, union, run.context, run.batch))
    layers_us = table.model.num_layers * amounts.layer_us
    levels_us = float(amounts.levels_us(run.levels, run.topk))
    drafting_us = (run.width > 1) * amounts.round_us + levels_us
    if table.drafting:
        drafting_us = table.drafting.at(run.batch).overhead_us(run.levels)
    return float(forward_us + layers_us + tokens * amounts.token_us + drafting_us)


def fit_overheads(
    deployments: Sequence[Deployment], prior: Overheads, source: str
) -> Overheads:
    """Overheads of deployments that share them, from a prior.

    A deployment weighs at most ten ratios: its runs share what the model omits.
    """
    start, spread = (np.array(astuple(each)) for each in (prior.amounts, prior.spread))

    def residuals(found: Floats) -> Floats:
        amounts = Amounts(*found.tolist())
        parts = [(found - start) / spread]
        for each in deployments:
            level, ratio = each.errors(amounts)
            parts.append(level / LEVEL_SD / np.sqrt(len(level)))
            parts.append(ratio / RATIO_SD / np.sqrt(max(len(ratio) / 10.0, 1.0)))
        return np.concatenate(parts)

    bounds = (np.zeros(len(start)), np.array(astuple(LARGEST)))
    found = least_squares(residuals, start, bounds=bounds, loss="soft_l1")
    slopes = np.asarray(found.jac)
    spreads = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
    return replace(
        prior,
        source=source,
        runs=sum(len(each.runs) for each in deployments),
        amounts=Amounts(*found.x.round(3).tolist()),
        spread=Amounts(*np.minimum(spreads, spread).tolist()),
    )


@dataclass(frozen=True)
class ServedStudy:
    deployment: Deployment
    before: Overheads
    found: Overheads

    @property
    def meaning(self) -> str:
        served = self.deployment
        drafts = np.array([run.width > 1 for run in served.runs])
        bare = replace(RECORD.amounts, layer_us=0.0, token_us=0.0)
        if np.median((served.served_us / served.step_us(bare))[~drafts]) < 1.0:
            return (
                "Your plain step is faster than the sum of its kernels: check that "
                "GPU, TP and dtype of the table are the server's."
            )
        explained_us = served.step_us(RECORD.amounts)
        times = np.median((served.served_us / explained_us)[drafts])
        if times > SLOWER:
            return (
                f"Measured drafting step: {times:.1f} times the default prediction. "
                "Check CUDA graphs, overlap scheduling and the drafter before K."
            )
        step = f"Measured drafting step: {times:.2f} of the default prediction"
        return (
            f"{step}; check K and the accepted length."
            if times < FASTER
            else f"{step}."
        )


def study(table: CostTable, runs: Sequence[ServedRun], source: str) -> ServedStudy:
    """Fit a table's overheads to runs; the error is known near the drafting batches."""
    for run in runs:
        tokens, most = run.batch * run.width, table.max_tokens(run.batch)
        if tokens > most or run.batch > table.fit.domain["batch"][1]:
            raise ConfigError(
                f"{table.path}: does not cover {tokens} tokens of {run.batch} "
                "requests; leave that run out"
            )
    deployment = Deployment(table, tuple(runs))
    before = ServedStep.of(table).overheads or RECORD
    # A plain run shows the time a layer, however far it lies from others'.
    spread = replace(before.spread, layer_us=OWN_LAYERS_US)
    batches = tuple(sorted({run.batch for run in runs if run.width > 1}))
    growth = min(OWN_GROWTH, max(map(before.growth_at, batches), default=OWN_GROWTH))
    prior = replace(before, spread=spread, growth=growth, batches=batches)
    found = fit_overheads([deployment], prior, source)
    off = np.log(deployment.step_us(found.amounts) / deployment.served_us)
    if np.abs(off).max() > RATIO_SD:
        far = {name: WIDER * getattr(spread, name) for name in FIXED}
        prior = replace(prior, spread=replace(spread, **far))
        found = fit_overheads([deployment], prior, source)
    _check_explained(deployment, found.amounts)
    return ServedStudy(deployment, before, found)


def _check_explained(deployment: Deployment, amounts: Amounts) -> None:
    steps_us = zip(
        deployment.runs, deployment.served_us, deployment.step_us(amounts), strict=True
    )
    run, served_us, us = max(steps_us, key=lambda step: abs(np.log(step[2] / step[1])))
    if not 1.0 / UNEXPLAINED < served_us / us < UNEXPLAINED:
        raise ConfigError(
            f"a step of {run.levels} levels at batch {run.batch} was served in "
            f"{served_us / 1e3:.2f} ms, and the nearest that overheads explain is "
            f"{us / 1e3:.2f} ms: check the table's GPU, TP and dtype, K, the accepted "
            "length and the units of the runs"
        )
