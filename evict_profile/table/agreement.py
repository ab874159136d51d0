"""Do the parts of a table tell the same of it?

A document that was changed and signed again has a sound hash. Its staircases are the
fit's price at its activation curve, its marginal costs are that price's slopes, and its
domain spans its axes; where they do not, one of them was changed.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from evict_profile.table.parts import PLACE, Staircase
from evict_profile.table.workload import check_distinct

if TYPE_CHECKING:
    from evict_profile.table.cost_table import CostTable

ROUNDING_US = 0.06
"""Staircases are kept to a tenth of a microsecond."""


def check_agreement(table: "CostTable") -> None:
    """Compare each part with those that it follows from.

    Raises:
        ValueError: naming the fields that disagree.
    """
    _check_domain(table)
    _check_activation(table)
    if not table.staircases:
        raise ValueError("staircases holds none")
    check_distinct("staircases", [(s.batch, s.context) for s in table.staircases])
    lengths: dict[int, int] = {}
    for stairs in table.staircases:
        length = len(stairs.step_cost_us)
        if lengths.setdefault(stairs.batch, length) != length:
            raise ValueError(
                f"staircases of batch {stairs.batch} are of different lengths"
            )
        _check_staircase(table, stairs)
    _check_marginal(table)


def _check_domain(table: "CostTable") -> None:
    axes, fit = table.axes, table.fit
    spans = {name: getattr(axes, name) for name in ("width", "union", "context")}
    spans |= {"batch": axes.batch, "tokens": (axes.max_tokens,)}
    for axis, values in spans.items():
        least, most = fit.domain[axis]
        if most != max(values, default=0) or (axis != "tokens" and least != values[0]):
            raise ValueError(f"fit.domain.{axis} does not span axes.{axis}")
    if fit.measured_layers * fit.layer_scale > 2 * table.model.num_layers:
        raise ValueError("fit.layer_scale is of more layers than the model has")


def _check_activation(table: "CostTable") -> None:
    curve = table.activation
    if len(curve.union) <= table.axes.max_tokens:
        raise ValueError("activation.union ends before axes.max_tokens")
    for union in (curve.union, *(each.union for each in curve.by_batch)):
        if not 0.0 < max(union) <= table.model.moe.num_experts:
            raise ValueError("activation.union activates more experts than there are")


def _check_staircase(table: "CostTable", stairs: Staircase) -> None:
    name = f"staircases at batch {stairs.batch}, context {stairs.context}"
    if stairs.batch not in table.axes.batch or stairs.context not in table.axes.context:
        raise ValueError(f"{name}: axes hold no such batch and context")
    if len(stairs.step_cost_us) > table.axes.max_tokens + 1:
        raise ValueError(f"{name}: step_cost_us goes beyond axes.max_tokens")
    asked = np.arange(len(stairs.step_cost_us))
    fitted = table.fitted_us(asked, stairs.batch, stairs.context)
    if not np.allclose(stairs.step_cost_us, fitted, rtol=1e-6, atol=ROUNDING_US):
        raise ValueError(f"{name}: step_cost_us is not what fit and activation price")


def _check_marginal(table: "CostTable") -> None:
    costs, price = table.fit.marginal, table.cost.price
    both = {a: np.array([(c.start[a], c.end[a]) for c in costs]).T for a in PLACE}
    start_us, end_us = price(**both) if costs else ((), ())
    for each, low, high in zip(costs, start_us, end_us, strict=True):
        units = each.end[each.axis] - each.start[each.axis]
        if not math.isclose(each.us * units, high - low, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(f"fit.marginal: '{each.name}' is not what the fit prices")
