"""Latency of a step: the sum of a model's parts, cell by cell.

The grid ends where the rows of attention end, which at many requests is at a shorter
context: the GPU that was measured held no more cached tokens.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from evict_profile.cells import Sample, to_frame
from evict_profile.config import GridSpec, ModelSpec, SweepSpec
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.parts import Parts
from evict_profile.stats import Estimate
from evict_profile.sweep.grid import make_grid
from evict_profile.table import COMPOSED

WIDTHS, BATCHES = (1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 64, 128, 256)
CONTEXTS, LONG_CONTEXTS = (512, 2048), (8192, 32768)
"""A table ends at the first alone where the fit of all does not pass its gates."""

UNIONS, MAX_TOKENS, VALIDATION = 7, 2048, 16
LARGE, CHAIN = 1024, 8
"""Above so many tokens only widths of chains are composed, at the largest batches."""


@dataclass(frozen=True)
class Composer:
    """Step latencies of one model by one kernel's experts and all other parts."""

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
        """Microseconds of each part of one MoE layer."""
        experts_us = self.experts.us(np.array([tokens], float), np.array([union]))
        return {
            **self.parts.moe_layer(tokens),
            "experts": float(experts_us[0]),
            "attention": self.parts.attention.at(tokens, context, batch).value,
        }

    def rest(self, tokens: int, context: int, batch: int) -> dict[str, float]:
        """Microseconds of each part outside the MoE layers."""
        parts = {"head": self.parts.head(tokens)}
        if layers := self.model.dense_layers:
            attention_us = self.parts.attention.at(tokens, context, batch).value
            own = self.parts.dense_layer(tokens)
            parts["dense layers"] = layers * (sum(own.values()) + attention_us)
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
                clock_us=sum(own.values()),
                observed_width=cell.width,
                observed_union=float(cell.union) if layers else float("nan"),
                union_low=cell.union,
                union_high=cell.union,
            )
        )
        parts.append({f"{name.replace(' ', '_')}_us": us for name, us in own.items()})
    return pd.concat([to_frame(samples), pd.DataFrame(parts)], axis=1)
