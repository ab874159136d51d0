"""Wrong-table study: policies decide with a wrong table, and true prices are charged.

A table can be wrong in scale (another clock limit), in slope (another kernel), in how
the union grows (uniform routing, or none at all: start-up profiles whose dummy tokens
activate the same experts or none, as vLLM's and SGLang's do), or in everything (another
GPU's). Every policy is compared with itself, deciding with the right table, on
the same prompts: so the loss is the table's alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from evict_profile.config.model import uniform_union
from evict_profile.io import data_root
from evict_profile.replay.compare import Scenario, ScenarioReplay
from evict_profile.replay.policies import DEPTH_CONDITIONAL, RATE, RATIO, guided
from evict_profile.replay.sums import mean, tokens_per_s
from evict_profile.stats import Estimate, Floats
from evict_profile.table import (
    COMPOSED,
    ActivationCurve,
    CostTable,
    Outside,
    Price,
    tables_below,
)

Distort = Callable[[Floats, int, float], Floats]
"""Step costs [T + 1], the batch and the context, to other step costs [T + 1]."""

SCALES = (0.5, 0.8, 1.25, 2.0)
TILTS = (0.5, 2.0)
STUDIED = (RATIO, RATE, DEPTH_CONDITIONAL)
"""Policies given wrong tables; the last only where the table has conditional
acceptance."""


@dataclass(frozen=True)
class WrongTableResult:
    """One policy deciding with one wrong table.

    Attributes:
        wrong: what is wrong with the table.
        over_right: its throughput over its own with the right table.
        verified: tokens of a request verified in a step.
    """

    policy: str
    wrong: str
    over_right: Estimate
    verified: Estimate


@dataclass(frozen=True)
class WrongTableStudy:
    """Every wrong table in one scenario."""

    scenario: Scenario
    results: tuple[WrongTableResult, ...]


class Distorted(CostTable, frozen=True, kw_only=True):
    """A table whose step costs are read through a distortion."""

    distort: Distort

    def price(self, batch: int, context: float, outside: Outside = "refuse") -> Price:
        """The table's own price, distorted."""
        price = super().price(batch, context, outside)
        us = self.distort(price.step_cost_us, batch, context)
        return price._replace(step_cost_us=us)


def distorted(table: CostTable, distort: Distort) -> Distorted:
    """A table with everything but its prices unchanged."""
    own = {name: getattr(table, name) for name in CostTable.__struct_fields__}
    return Distorted(**own, distort=distort)


def study_wrong_tables(
    replay: ScenarioReplay, wrongs: Mapping[str, Distort]
) -> WrongTableStudy:
    """Every wrong table under every policy of `STUDIED`.

    Args:
        replay: whose prices are charged.
        wrongs: distortions of its table by what they do.
    """
    depth, estimate = replay.arrays.depth, replay.bootstrap.estimate
    right = guided(replay.table, depth)
    studied = [policy for policy in STUDIED if policy in right]
    speed = {policy: tokens_per_s(replay.sums(right[policy])) for policy in studied}
    results = []
    for wrong, distort in wrongs.items():
        make = guided(distorted(replay.table, distort), depth)
        for policy in studied:
            sums = replay.sums(make[policy])
            over_right = estimate(tokens_per_s(sums) / speed[policy])
            verified = estimate(mean(sums, "verified"))
            results.append(WrongTableResult(policy, wrong, over_right, verified))
    return WrongTableStudy(replay.scenario, tuple(results))


def wrong_tables(table: CostTable, other: CostTable | None) -> dict[str, Distort]:
    """Distortions by what they do.

    Args:
        table: that is distorted.
        other: a table of another device, where there is one.
    """
    top_k, experts = table.cost.shape.top_k, table.fit.domain["union"][1]
    tokens = np.arange(table.fit.domain["tokens"][1] + 1)
    uniform = uniform_union(experts, top_k, tokens)
    return {
        **{f"verification x {scale:g}": scaled(scale) for scale in SCALES},
        **{f"slope in tokens x {slope:g}": tilted(slope) for slope in TILTS},
        "union of uniform routing": with_activation(table, uniform),
        **start_up_dummies(table),
        **({"shape of another device's table": borrowed(other)} if other else {}),
    }


def start_up_dummies(table: CostTable) -> dict[str, Distort]:
    """What an engine sees that profiles itself with dummy tokens when it starts."""
    top_k = table.cost.shape.top_k
    return {
        f"start-up dummy: all tokens activate the same {top_k}": with_activation(
            table, np.full(2, float(top_k))
        ),
        "start-up dummy: no routed experts": with_activation(table, np.zeros(2)),
    }


def scaled(scale: float) -> Distort:
    """All costs times a factor."""
    return lambda us, batch, context: us * scale


def tilted(slope: float) -> Distort:
    """What costs add to plain decoding's, times a factor."""
    return lambda us, batch, context: us[batch] + slope * (us - us[batch])


def with_activation(table: CostTable, union: Floats) -> Distort:
    """The fit at another activation curve, flat beyond its end."""
    curve = ActivationCurve("another", True, tuple(union.tolist()))
    other = replace(table, activation=curve)
    return lambda us, batch, context: _fitted(other, len(us), batch, context)


def borrowed(other: CostTable) -> Distort:
    """Another table's shape, scaled so that plain decoding costs what it does."""

    def distort(us: Floats, batch: int, context: float) -> Floats:
        there = _fitted(other, len(us), batch, context)
        shape: Floats = there * (us[batch] / there[batch])
        return shape

    return distort


def _fitted(table: CostTable, count: int, batch: int, context: float) -> Floats:
    """The fit's price of 0 to `count` - 1 tokens, outside the table at its edge."""
    seen, priced_batch = (
        float(np.clip(value, *table.fit.domain[axis]))
        for axis, value in (("context", context), ("batch", batch))
    )
    return table.fitted_us(np.arange(count), batch, seen, priced_batch)


def shipped_table(apart_from: str = "") -> CostTable | None:
    """The first measured table that comes with the package, of another device."""
    shipped = (found.table for found in tables_below(data_root() / "cost_tables"))
    others = (t for t in shipped if t and t.origin != COMPOSED)
    return next((t for t in others if t.key.gpu != apart_from), None)


def name_of(table: CostTable) -> str:
    """A table's model and device."""
    return f"{table.key.model} on {table.key.where}"
