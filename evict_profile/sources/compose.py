"""A cost table from public rows: gates, cells, and the fit of measured tables.

The grid ends where the rows of attention end, which at many requests is at a shorter
context: the GPU that was measured held no more cached tokens.
docs/explanation/estimated-tables.md has the error against served steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from pathlib import Path

import numpy as np
import pandas as pd

from evict_profile import __version__
from evict_profile.cells import UNTIMED, Sample, to_frame
from evict_profile.config import GridSpec, ModelSpec, SweepSpec
from evict_profile.cost_model import Term
from evict_profile.errors import MeasurementError
from evict_profile.fit.export import make_table, save_with_samples
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.gates import error_gate
from evict_profile.fit.hinge import fit_cost
from evict_profile.fit.intervals import MIN_SHARE
from evict_profile.fit.points import split_points
from evict_profile.records import replace
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, Source
from evict_profile.sources.asked import BATCHES, CONTEXTS
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import by_bytes, expert_gates, misfit, passes
from evict_profile.sources.pairs import GPUS, KernelKey, layer_name
from evict_profile.sources.parts import NOT_INCLUDED, Parts
from evict_profile.stats import Estimate
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.latency import Samples
from evict_profile.table import (
    COMPOSED,
    Composition,
    CompositionError,
    CostTable,
    Gate,
    Staircase,
)

WIDTHS, LONG_CONTEXTS = (1, 2, 4, 8, 16, 32, 64), (8192, 32768)
"""A table ends at CONTEXTS where the fit of all does not pass its gates."""

UNIONS, MAX_TOKENS, VALIDATION = 7, 2048, 16
LARGE, CHAIN = 1024, 8
"""Above so many tokens only widths of chains are composed, at the largest batches."""

ROUTERS = (
    "plain: a plain top-k of the sampler's choice",
    "grouped 8/4: DeepSeek-V3's gate, in front of its rows under this engine",
)

ERROR = CompositionError(step=0.18, growth=0.12)
"""From the p90 of 30 % and 19 % of composed against served times."""


@dataclass(frozen=True)
class Composer:
    experts: ExpertRows
    parts: Parts
    other_kernels: tuple[str, ...] = ()

    @property
    def model(self) -> ModelSpec:
        return self.parts.model

    def covers(self, width: int, context: int, batch: int) -> bool:
        small = width * batch <= LARGE or width <= CHAIN
        return small and self.parts.attention.reaches(context, batch)

    def layer(
        self, tokens: int, union: float, context: int, batch: int
    ) -> dict[str, float]:
        experts_us = self.experts.us(np.array([tokens], float), np.array([union]))
        return {
            **self.parts.moe_layer(tokens),
            "experts": float(experts_us[0]),
            "attention": self.parts.attention.at(tokens, context, batch).value,
        }

    def rest(self, tokens: int, context: int, batch: int) -> dict[str, float]:
        parts = {"head": self.parts.head(tokens)}
        if layers := self.model.dense_layers:
            attention_us = self.parts.attention.at(tokens, context, batch).value
            dense = self.parts.dense_layer(tokens)
            parts["dense layers"] = layers * (sum(dense.values()) + attention_us)
        return parts

    def step(self, tokens: int, union: float, context: int, batch: int) -> Estimate:
        """A step in microseconds; its bounds are those of attention."""
        layer_us = sum(self.layer(tokens, union, context, batch).values())
        rest_us = sum(self.rest(tokens, context, batch).values())
        us = self.model.moe_layers * layer_us + rest_us
        one = self.parts.attention.at(tokens, context, batch)
        layers = self.model.num_layers
        low, high = (us + layers * (end - one.value) for end in (one.low, one.high))
        return Estimate(us, low, high)


def sweep_of(contexts: tuple[int, ...] = CONTEXTS + LONG_CONTEXTS) -> SweepSpec:
    grid = GridSpec(
        width=WIDTHS,
        union=UNIONS,
        context=contexts,
        batch=BATCHES,
        max_tokens=MAX_TOKENS,
        natural=False,
        validation=VALIDATION,
    )
    return SweepSpec(name=COMPOSED, grid=grid, runner=COMPOSED)


def cells_of(composer: Composer, sweep: SweepSpec) -> pd.DataFrame:
    samples, parts = [], []
    for order, cell in enumerate(make_grid(sweep, composer.model).measured):
        at, layers = (cell.context, cell.batch), cell.part == "layers"
        if not composer.covers(cell.width, *at):
            continue
        if layers:
            own = composer.layer(cell.tokens, cell.union, *at)
        else:
            own = composer.rest(cell.tokens, *at)
        samples.append(
            Sample(
                cell,
                round=1,
                order=order,
                seed=0,
                reading=replace(
                    UNTIMED,
                    clock_us=sum(own.values()),
                    observed_width=cell.width,
                    observed_union=float(cell.union) if layers else float("nan"),
                    union_low=cell.union,
                    union_high=cell.union,
                ),
            )
        )
        parts.append({f"{name.replace(' ', '_')}_us": us for name, us in own.items()})
    return pd.concat([to_frame(samples), pd.DataFrame(parts)], axis=1)


@dataclass(frozen=True)
class ComposedFit(Fitted):
    more_terms = (Term("reads"),)

    @cached_property
    def misfit(self) -> float:
        composition = self.provenance
        assert isinstance(composition, Composition)
        return composition.error.step


def composer_of(
    source: Source, kernels: Sequence[KernelKey], model: ModelSpec
) -> Composer:
    """The fastest kernel whose rows pass their gates; without one, the fastest."""
    experts = [ExpertRows.of(source, kernel) for kernel in kernels]
    near = [by_bytes(source, rows) for rows in experts if not rows.identified]
    good = list(filter(passes, experts)) or list(filter(passes, near))
    # Of two data types the first, which has more bits.
    best = min(good or near or experts, key=lambda e: (e.pair.dtype, _mean_log_us(e)))
    same = (kernel for kernel in kernels if kernel.dtype == best.pair.dtype)
    others = tuple(kernel.kernel for kernel in same if kernel != best.pair)
    return Composer(best, Parts(source, best.pair, model), others)


def _mean_log_us(experts: ExpertRows) -> float:
    if not experts.others:
        us = experts.balanced["us"]
        return np.inf if us.empty else float(np.log(us).mean())
    tokens = np.array(WIDTHS, float)
    _, _, top_k, count = experts.pair.shape
    return float(np.log(experts.us(tokens, np.minimum(top_k * tokens, count))).mean())


def compose(composer: Composer, sweep: SweepSpec) -> tuple[CostTable, pd.DataFrame]:
    """The table, and the cells behind it; to where the fit passes its gates."""
    gates = tuple(expert_gates(composer.experts))
    _check(gates)
    *shorter, _ = sweep.grid.context
    try:
        return _fitted(composer, sweep, gates)
    except MeasurementError:
        if len(shorter) < len(CONTEXTS):
            raise
        return compose(composer, sweep_of(tuple(shorter)))


def _fitted(
    composer: Composer, sweep: SweepSpec, gates: tuple[Gate, ...]
) -> tuple[CostTable, pd.DataFrame]:
    model, frame = composer.model, cells_of(composer, sweep)
    points, _ = split_points(
        Samples(frame).cells, make_grid(sweep, model), capture_sizes=()
    )
    composition = _composition(composer, sweep, len(frame), len(points))
    cost = fit_cost(points, model, 1, ComposedFit.more_terms)
    fitted = ComposedFit(model, (), composition, Samples(frame), cost)
    unseen = {
        "cells between": fitted.validation.error,
        "held-out cells": fitted.held_out["hinge"].error,
    }
    fit_gates = (error_gate(name, error) for name, error in unseen.items() if error)
    table = make_table(fitted, gates=(*gates, *fit_gates))
    _check(table.gates)
    stairs = tuple(_widened(composer, stair) for stair in table.staircases)
    return replace(table, staircases=stairs, caveats=table.own_caveats), frame


def export_composed(table: CostTable, frame: pd.DataFrame, out: Path) -> Path:
    samples = frame.to_parquet(index=False)
    return save_with_samples(table, samples, table.home_in(out))[1]


def _check(gates: Sequence[Gate]) -> None:
    failed = [f"{gate.name}: {gate.message}" for gate in gates if not gate.passed]
    if failed:
        raise MeasurementError(
            f"not composed, since {' | '.join(failed)}; measure your server with: "
            "evict-profile probe URL --out runs.jsonl"
        )


def _composition(
    composer: Composer, sweep: SweepSpec, samples: int, cells: int
) -> Composition:
    experts, parts = composer.experts, composer.parts
    pair, rows, others = experts.pair, experts.rows, experts.others or ()
    balanced = int((rows["distribution"] == "balanced").sum())
    apart, gpu = misfit(experts), GPUS[experts.pair.gpu]
    return Composition(
        fingerprint={
            "device": gpu.device,
            "model": composer.model.name,
            "dtype": pair.dtype,
            "tp": parts.ranks,
            "ep": pair.ep,
            "engine": pair.engine,
            "engine_version": pair.version,
            "attention_backend": parts.attention.kernel,
            "moe_backend": pair.kernel,
            "graph_mode": COMPOSED,
        },
        sweep=sweep,
        samples_sha256="",
        samples=samples,
        cells=cells,
        bandwidth_gbps=experts.peak_gbps,
        evict_profile=__version__,
        package=parts.source.name,
        licence=LICENCE,
        attribution=ATTRIBUTION,
        files=dict(parts.source.read),
        rows_used=sum(len(layer.cold) for layer in (experts, *others)),
        rows_dropped={
            "weights fit into the L2 cache": len(experts.balanced) - len(experts.cold),
            "measured again, or of more tokens than are covered": balanced
            - len(experts.balanced),
            "slower or faster than both rows beside them": experts.strays,
            "other routings, whose unions are not exact": len(rows) - balanced,
            "not eligible, says their package": sum(parts.source.ineligible.values()),
        },
        router=ROUTERS[pair.grouped],
        l2_mb=float(gpu.l2_mb),
        substituted_versions=dict(parts.rows.substituted_versions),
        stand_ins=dict(parts.rows.stand_ins),
        without_kernels=parts.attention.by_bytes,
        not_included=NOT_INCLUDED,
        error=CompositionError(hypot(ERROR.step, apart), hypot(ERROR.growth, apart)),
        misfit=apart,
        near=tuple(layer_name(layer.pair) for layer in others),
        other_kernels=composer.other_kernels,
    )


def _widened(composer: Composer, stairs: Staircase) -> Staircase:
    widest = len(stairs.step_cost_us)
    tokens = np.maximum(np.arange(widest), stairs.batch).tolist()
    attention, at = composer.parts.attention, (stairs.context, stairs.batch)
    estimates = [attention.at(n, *at) for n in tokens]
    low, us, high = np.array([(e.low, e.value, e.high) for e in estimates]).T
    layers, cost = composer.model.num_layers, stairs.costs
    least = MIN_SHARE * cost.step_cost_us
    lower = np.maximum(cost.low_us - layers * (us - low), least)
    upper = cost.high_us + layers * (high - us)
    return replace(
        stairs,
        low_us=tuple(np.round(lower, 1).tolist()),
        high_us=tuple(np.round(upper, 1).tolist()),
    )
