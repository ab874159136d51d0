"""Overheads of deployments from their runs.

Log ratios of steps are fitted by least squares to the model of `table.overheads`. The
prior is other deployments' amounts and their spread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import astuple, replace
from scipy.optimize import least_squares

from evict_profile.calibrate.served import ServedRun
from evict_profile.cost_model import padded_tokens
from evict_profile.stats import Floats
from evict_profile.table import CostTable
from evict_profile.table.overheads import Amounts, Overheads

LEVEL_SD, RATIO_SD = 0.1, 0.06
"""Unexplained errors of a plain step and of a step over it, sd of logs."""

LARGEST = Amounts(1.05, 2_000.0, 1_000.0, 50_000.0, 20_000.0, 5_000.0)


@dataclass(frozen=True)
class Deployment:
    """A server's runs, and the table of its model, GPU and engine without overheads."""

    table: CostTable
    runs: tuple[ServedRun, ...]

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
