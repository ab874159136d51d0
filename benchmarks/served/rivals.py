"""Simpler predictions of the same runs, each taught by the other deployments.

Identical tokens: the same table at U = k and the same overheads, which is what a
start-up profile sees. One parameter: step / plain step = 1 + c (n - 1). Weight bytes:
the bytes that a step must read over the bandwidth of the GPUs, with overheads fitted
anew, and no kernel was timed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.served.fit import Deployment, fit_overheads
from benchmarks.served.record import DENSE, DenseControl, deployments
from benchmarks.wrong_tables import start_up_profiles
from evict_profile.calibrate.served import ServedRun
from evict_profile.cells import Cell
from evict_profile.physics import layer_work, non_moe_work
from evict_profile.stats import Floats
from evict_profile.table.overheads import Amounts, Overheads


@dataclass(frozen=True)
class WeightBytes(Deployment):
    """A forward that takes what reading its weights and caches takes."""

    def step_us(self, amounts: Amounts) -> Floats:
        """See `Deployment.step_us`."""
        forward_us = np.array([self._read_us(run, amounts) for run in self.runs])
        return forward_us + [self._beside_us(run, amounts) for run in self.runs]

    def _read_us(self, run: ServedRun, amounts: Amounts) -> float:
        table, top_k = self.table, self.table.model.moe.top_k
        model, halved = table.model, 2.0 if table.key.dtype.startswith("fp8") else 1.0
        uniform = float(table.activation.at(np.array(run.batch * run.width), run.batch))
        union = top_k + amounts.union_share * max(uniform - top_k, 0.0)
        cell = Cell("layers", run.width, 0, int(run.context), run.batch, "natural")
        layers = model.moe_layers * layer_work(model, cell, union).bytes_moved
        moved = layers + non_moe_work(model, cell).bytes_moved
        return moved / halved / table.provenance.bandwidth_gbps / 1e3 / table.key.tp

    def _beside_us(self, run: ServedRun, amounts: Amounts) -> float:
        level_us = amounts.level_us + (run.topk > 1) * amounts.branch_us
        drafting_us = (run.width > 1) * amounts.round_us + run.levels * level_us
        tokens_us = run.batch * run.width * amounts.token_us
        return self.table.model.num_layers * amounts.layer_us + tokens_us + drafting_us


def step_ratios(
    name: str, runs: tuple[ServedRun, ...], known: Overheads
) -> dict[str, Floats]:
    """Step over plain step by each rival, float64 [runs], the plain run left out."""
    others = {n: each for n, each in deployments().items() if n != name}
    table = deployments()[name].table
    dummy = start_up_profiles(table)["identical tokens"]
    by_bytes = fit_overheads([*map(_by_bytes, others.values())], known, "weight bytes")
    width = np.array([run.width for run in runs if run.width > 1])
    return {
        "identical tokens": _ratios(Deployment(dummy, runs), known.amounts),
        "one parameter": 1.0 + one_parameter(others) * (width - 1.0),
        "weight bytes": _ratios(WeightBytes(table, runs), by_bytes.amounts),
    }


def one_parameter(known: Mapping[str, Deployment]) -> float:
    """c of 1 + c (n - 1), by least squares of log ratios of all settings."""
    moe = [each for name, each in known.items() if name not in DENSE.values()]
    pairs = [pair for each in moe for pair in _served_ratios(each)]
    width, ratio = (np.array(column, float) for column in zip(*pairs, strict=True))

    def loss(c: float) -> float:
        return float(np.square(np.log(1.0 + c * (width - 1.0)) - np.log(ratio)).sum())

    return float(minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded").x)


def _served_ratios(each: Deployment) -> Iterable[tuple[int, float]]:
    plain_us = each.plain[0].step_us
    return ((run.width, run.step_us / plain_us) for run in each.runs if run.width > 1)


def _by_bytes(each: Deployment) -> Deployment:
    return (
        each if isinstance(each, DenseControl) else WeightBytes(each.table, each.runs)
    )


def _ratios(each: Deployment, amounts: Amounts) -> Floats:
    plain_us, *step_us = each.step_us(amounts)
    return np.array(step_us) / plain_us
