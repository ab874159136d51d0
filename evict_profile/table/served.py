"""Latency of a served step that verifies n tokens a request and drafts L levels.

`ServedStep` adds a server's overheads (`evict_profile.table.overheads`) and drafting to
the table's forward. The record's level is a forward of an EAGLE-3 head, mostly
launches and sampling. An MTP head adds one of the target's MoE layers and its head on
one token a request. A drafter with a checkpoint adds its weights over the bandwidth,
and the record's time of a layer for each but the first. Without a record, a level is
assumed to take what the MTP head adds; EAGLE-3's dense layer should take less.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from evict_profile.cost_model import features_at
from evict_profile.errors import DataError
from evict_profile.physics import non_moe_weights
from evict_profile.records import replace
from evict_profile.stats import Estimate, Floats
from evict_profile.table.cost_table import CostTable, Outside
from evict_profile.table.key import COMPOSED, Caveats
from evict_profile.table.overheads import (
    DATASHEET_GROWTH,
    NEAR,
    NO_AMOUNTS,
    RECORD,
    RECORD_ELSEWHERE,
    RECORD_PLACE,
    TWO_SIDED,
    Amounts,
    Drafter,
    Overheads,
    OwnStep,
    own_at,
)
from evict_profile.table.parts import StepCosts
from evict_profile.table.provenance import DATASHEET, Composition, Swept
from evict_profile.table.workload import DraftClock, Drafting

ASSUMED = (
    "ASSUMED: a level costs as one of the target's layers and its head, as a "
    "multi-token-prediction head would; give yours with --draft-level-ms"
)

BYTES_PER_WEIGHT = 2.0
"""Of a draft model, in bfloat16."""
KEPT = 2048


@dataclass(frozen=True, eq=False)
class ServedStep:
    """The time of a step where a table's engine serves.

    Attributes:
        table: forwards with a server's overheads; `drafting` is None where assumed.
        overheads: None where nothing was added.
        outside: "refuse" what is not covered, or "clamp" to it; see `caveats_at`.
    """

    table: CostTable
    drafting: Drafting
    overheads: Overheads | None
    drafter: Drafter
    outside: Outside = "refuse"

    @classmethod
    def of(
        cls,
        table: CostTable,
        drafting: Drafting | None = None,
        topk: int = 1,
        context: float | None = None,
        drafter: Drafter | None = None,
    ) -> "ServedStep":
        """The steps of a server: forwards with its overheads, and drafting.

        Args:
            drafting: in place of the table's.
            topk: branches a drafted level may have; 1 drafts chains.
            context: of the forwards from which drafting is computed; None is the
                smallest.
            drafter: None is the model's MTP layers, or an EAGLE-3 head.
        """
        drafter = drafter or Drafter.of(table.model)
        at = min(table.axes.context) if context is None else context
        overheads = _overheads_of(table, drafter)
        known = table.drafting or _drafting(table, overheads, drafter, topk, at)
        if overheads:
            table = _with_overheads(table, overheads, known)
        if drafting:
            table = replace(table, drafting=drafting)
        return cls(table, table.drafting or known, overheads, drafter)

    @property
    def assumes_drafting(self) -> bool:
        return self.drafting.workload == ASSUMED

    @property
    def caveats(self) -> Caveats:
        return self.table.caveats

    def caveats_at(self, batch: int, context: float) -> Caveats:
        """Those of the table, and of a place that it does not cover."""
        return self._costs(batch, context).caveats

    def with_drafting(self, drafting: Drafting) -> "ServedStep":
        table = replace(self.table, drafting=drafting)
        return replace(self, table=table, drafting=drafting)

    def extending(self) -> "ServedStep":
        """The same where a plain step takes the rest of a drafting step.

        SGLang extends the drafter's cache in every step, so that the next can draft.
        """
        if self.assumes_drafting:
            return self
        clocks = (replace(c, plain_fixed_us=c.fixed_us) for c in self.drafting.batches)
        return self.with_drafting(replace(self.drafting, batches=tuple(clocks)))

    def covers(self, batch: int, width: int, context: float) -> bool:
        return batch * width < len(self._costs(batch, context).step_cost_us)

    def us(self, batch: int, width: int, levels: int, context: float) -> Estimate:
        """A step's time in microseconds, with the 95 % interval of its forward.

        Args:
            batch: requests that decode together.
            width: tokens that each verifies, its root included.
            levels: drafted one after another; 0 decodes plainly.
            context: tokens in a request's KV cache, mean over the batch.

        Raises:
            DataError: a batch, a context or a width that is not covered.
        """
        if not self.covers(batch, width, context):
            raise DataError(
                f"{self.table.path}: has no cost of {width} tokens a request at batch "
                f"{batch}; verify fewer, or sweep wider"
            )
        cost, beside_us = self._costs(batch, context), self.beside_us(batch, levels)
        low, us, high = (
            float(each[batch * width] + beside_us)
            for each in (cost.low_us, cost.step_cost_us, cost.high_us)
        )
        return Estimate(us, low, high)

    def beside_us(self, batch: int, levels: int) -> float:
        return self.drafting.at(batch).overhead_us(levels)

    def ratio(self, batch: int, width: int, levels: int, context: float) -> Estimate:
        """A step's time over plain decoding's, with its 95 % interval; see `us`.

        The interval is the overheads', if known, which were compared at short contexts;
        longer ones add what is less certain there. Else it has the errors of both
        forwards, as if independent, and the whole of assumed drafting; measured
        drafting has no error.
        """
        ratio = (
            self.us(batch, width, levels, context).value
            / self.us(batch, 1, 0, context).value
        )
        if width == 1:
            return Estimate(ratio, ratio, ratio)
        cost, at = self._costs(batch, context), (batch, batch * width)
        low, us, high = cost.low_us, cost.step_cost_us, cost.high_us
        if self.overheads:
            plain_us, short = float(us[batch]), min(self.table.axes.context)
            ends = self.overheads.ratio_interval(ratio, batch, width, levels, plain_us)
            added = self._apart(*at, context) - self._apart(*at, short)
            below, above = ratio * np.maximum(added, 0.0)
            least = ratio - math.hypot(ratio - ends[0], below)
            most = ratio + math.hypot(ends[1] - ratio, above)
            least = max(least, min(ratio, 1.0))
            return self._widened(Estimate(ratio, least, most))
        half = math.hypot(*((high[t] - low[t]) / 2.0 / us[t] for t in at))
        if self.assumes_drafting:
            undrafted = float(us[batch * width] / us[batch])
            half = math.hypot(half, math.log(max(ratio / undrafted, 1.0)))
        return Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half))

    def _apart(self, batch: int, tokens: int, context: float) -> Floats:
        """Ends of a forward's interval beyond plain decoding's, float64 [2]."""
        cost = self._costs(batch, context)
        low, high = (cost.low_us, cost.high_us) / cost.step_cost_us
        return np.array([low[batch] - low[tokens], high[tokens] - high[batch]])

    def _widened(self, ratio: Estimate) -> Estimate:
        """By what the experts' rows err beyond those whose tables were compared."""
        made, value = self.table.provenance, ratio.value
        if not (isinstance(made, Composition) and made.misfit):
            return ratio
        apart = TWO_SIDED * made.misfit
        below, above = (abs(math.log(e / value)) for e in (ratio.low, ratio.high))
        low = value * math.exp(-math.hypot(below, apart))
        return Estimate(value, low, value * math.exp(math.hypot(above, apart)))

    @cached_property
    def _costs(self) -> Callable[[int, float], StepCosts]:
        return lru_cache(KEPT)(partial(self.table.costs, outside=self.outside))


def _overheads_of(table: CostTable, drafter: Drafter) -> Overheads | None:
    """The table's; else the public record's, elsewhere with a larger error."""
    if table.overheads or table.origin not in (COMPOSED, DATASHEET):
        return table.overheads
    if table.origin == DATASHEET:
        return replace(RECORD_ELSEWHERE, growth=DATASHEET_GROWTH)
    at_record = (table.key.engine, table.key.gpu) == RECORD_PLACE
    return RECORD if at_record and drafter.kind == "eagle3" else RECORD_ELSEWHERE


def _with_overheads(
    table: CostTable, known: Overheads, drafting: Drafting
) -> CostTable:
    added = known.terms(table.model.num_layers)
    activation = table.activation
    if activation.is_guess:
        activation = known.amounts.scaled(activation, table.model.moe.top_k)
    served = replace(
        table,
        fit=replace(table.fit, non_moe=(*table.fit.non_moe, *added)),
        activation=activation,
        drafting=drafting,
        caveats=table.caveats + _of_others(table, known, drafting),
    )
    return (_near_own(served, known.own) if known.own else served).read_anew()


def _near_own(table: CostTable, own: tuple[OwnStep, ...]) -> CostTable:
    """The table with its server's own steps, and near their batches alone."""
    ran, (least, most) = [each.batch for each in own], table.fit.domain["batch"]
    least = max(least, math.ceil(min(ran) / NEAR))
    most = min(most, math.floor(max(ran) * NEAR))
    inside = [b for b in table.axes.batch if least <= b <= most]
    drafting = table.drafting
    assert drafting, "known of a served table"
    near = inside or [min(table.axes.batch, key=lambda b: abs(math.log(b / ran[0])))]
    clocks = [replace(drafting.at(b), batch=b) for b in {*near, *ran}]
    own_clocks = tuple(own_at(own, each.batch).clock(each) for each in clocks)
    return replace(
        table,
        own=own,
        axes=replace(table.axes, batch=tuple(sorted({*near, *ran}))),
        fit=replace(table.fit, domain=table.fit.domain | {"batch": (least, most)}),
        staircases=tuple(s for s in table.staircases if s.batch in near),
        drafting=replace(drafting, batches=own_clocks),
    )


def _of_others(table: CostTable, known: Overheads, drafting: Drafting) -> Caveats:
    if table.overheads and known.batches:
        return ()
    where = f" at batches outside {known.near}" if known.batches else ""
    in_record = table.drafting or drafting.workload == known.source
    other = "" if in_record else "a forward of this drafter is not in them, "
    path = shlex.quote(str(table.path)) if table.path.name else "TABLE"
    return (
        f"intervals are wide{where}: drafting and host times are of "
        f"{RECORD.source}, {other}and no runs there show a smaller error; measure one "
        "run of your server with 'evict-profile probe URL --out runs.jsonl' and "
        f"'evict-profile calibrate {path} --served runs.jsonl'",
    )


def _drafting(
    table: CostTable,
    known: Overheads | None,
    drafter: Drafter,
    topk: int,
    context: float,
) -> Drafting:
    clocks, amounts = [], known.amounts if known else NO_AMOUNTS
    for batch in table.axes.batch:
        us = float(amounts.levels_us(1.0, topk))
        if drafter.weights:
            assert isinstance(table.provenance, Swept), "it is estimated"
            gbps = table.provenance.bandwidth_gbps * table.key.tp
            us += (drafter.layers - 1) * amounts.layer_us
            us += BYTES_PER_WEIGHT * drafter.weights / gbps / 1e3
        elif not known or drafter.kind == "mtp":
            us += _own_layer_us(table, amounts, batch, context)
        draft_us = tuple((us * drafter.forwards).tolist())
        clocks.append(DraftClock(batch, draft_us, amounts.round_us, 0.0))
    said = known.source if known else ASSUMED
    if known and drafter.kind != "eagle3":
        ms = clocks[0].draft_us[1] / 1e3
        said += f", with a forward of {drafter.kind} computed as {ms:.2f} ms"
    return Drafting(said, table.key.engine, tuple(clocks))


def _own_layer_us(
    table: CostTable, amounts: Amounts, batch: int, context: float
) -> float:
    cost, one, model = table.cost, np.array([float(batch)]), table.model
    union = table.activation.at(one, batch)
    if table.activation.is_guess:
        union = amounts.union(union, model.moe.top_k)
    features = features_at(cost.shape, one, union, np.array([context]), one)
    layers = cost.layers.latency_us(features)[0] / table.fit.measured_layers
    head = model.vocab_size * model.hidden_size / non_moe_weights(model)
    return float(layers + head * cost.non_moe.latency_us(features)[0])
