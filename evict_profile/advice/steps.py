"""Where a step's time is known from, for one question: how much to draft.

Every source answers with a ratio: a step over the reference step of its batch, which is
plain decoding, or the smallest K where a server ran no plain decoding. A sweep's table
has both steps, a served table has what was served and what lies near it, an estimated
table has the growth of the forward alone. Without any there are steps of other servers.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from evict_profile.errors import DataError
from evict_profile.served import growth
from evict_profile.served.growth import EXPONENT, StepRatio, around, unserved
from evict_profile.served.table import ServedTable
from evict_profile.stats import Estimate
from evict_profile.table import CostTable, Outside, ServedStep
from evict_profile.table.key import Caveats

ESTIMATE_ERROR: float = getattr(growth, "ESTIMATE_ERROR", growth.ERROR)
ONE = Estimate(1.0, 1.0, 1.0)

NOT_STATED = "not stated"
"""A fact of a served table's key that no run states."""


def tp_of(table: CostTable | ServedTable) -> int | None:
    """The number of GPUs; None where no run of a server states it."""
    if isinstance(table, CostTable):
        return table.key.tp
    stated = (run.deployment.tp for run in table.runs)
    return next(filter(None, stated), None)


class Steps(Protocol):
    """Steps by batch, width and levels; `table` is the file behind them, if any."""

    @property
    def table(self) -> CostTable | ServedTable | None: ...

    @property
    def title(self) -> str: ...

    @property
    def drafting(self) -> str:
        """What is known of the time of drafting; "" where it is inside the steps."""
        ...

    def caveats(self, batch: int) -> Caveats: ...

    @property
    def context(self) -> float | None:
        """The tokens in a request's cache; None where no one stated them."""
        ...

    def batches(self) -> tuple[int, ...]: ...

    def reference_drafts(self, batch: int) -> int:
        """K of the reference step, 0 of plain decoding; a `DataError` if unknown."""
        ...

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        """A step over the reference's; a `DataError` where it is not known."""
        ...

    def reference_us(self, batch: int) -> float | None: ...

    def split(self, batch: int, levels: int) -> str:
        """What a step of a chain of K is spent on, in one line; "" if not known."""
        ...


@dataclass(frozen=True)
class OfTable:
    """A table of a sweep, and a drafter's time: measured, given or assumed."""

    served: ServedStep
    context: float

    @property
    def table(self) -> CostTable:
        return self.served.table

    @property
    def title(self) -> str:
        return self.table.title

    @property
    def drafting(self) -> str:
        return self.served.drafting.workload

    def caveats(self, batch: int) -> Caveats:
        return self.served.caveats_at(batch, self.context)

    def batches(self) -> tuple[int, ...]:
        return _batches(self.table, self.context)

    def reference_drafts(self, batch: int) -> int:
        self.served.covers(batch, 1, self.context)
        return 0

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        ratio = self.served.ratio(batch, width, levels, self.context)
        return StepRatio(ratio, "table")

    def reference_us(self, batch: int) -> float:
        return self.served.us(batch, 1, 0, self.context).value

    def split(self, batch: int, levels: int) -> str:
        if self.served.assumes_drafting:
            return ""
        at, clock = self.context, self.served.drafting.at(batch)
        whole, plain = (
            self.served.us(batch, 1 + k, k, at).value / 1e3 for k in (levels, 0)
        )
        drafting = (clock.overhead_us(levels) - clock.fixed_us) / 1e3
        rest = (clock.fixed_us - clock.plain_fixed_us) / 1e3
        return (
            f"Of a step of K = {levels} at batch {batch}, {whole:.2f} ms, plain "
            f"decoding takes {plain:.2f}, verification of the drafts "
            f"{whole - plain - drafting - rest:.2f}, drafting {drafting:.2f} and the "
            f"rest {rest:.2f}."
        )


@dataclass(frozen=True)
class OfServed:
    """Runs of one server; drafting is inside its steps."""

    table: ServedTable
    context: float | None = None
    drafting: str = ""

    @property
    def title(self) -> str:
        assumed = "" if tp_of(self.table) else f", tp {self.table.key.tp}"
        return self.table.title.removesuffix(assumed)

    def caveats(self, batch: int) -> Caveats:
        served = batch in self.table.batches(self.context)
        return () if served else (f"batch {batch} was not served",)

    def batches(self) -> tuple[int, ...]:
        return self.table.batches(self.context)

    def reference_drafts(self, batch: int) -> int:
        return self.table.reference(batch, self.context).drafts

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        longest = max(each.levels for each in self.table.settings)
        if levels > 2 * longest:
            raise DataError(
                f"{self.table.path}: K = {levels} is more than twice the longest that "
                f"was served, {longest}; serve it"
            )
        found = self.table.ratio(batch, width, levels, self.context)
        if found.basis == "other batch" and not self._ran_beside(batch, levels):
            return StepRatio(found.value, "other K")
        return found

    def _ran_beside(self, batch: int, levels: int) -> bool:
        """Whether a K ran at both served neighbours of a batch."""
        known = self.batches()
        near = (
            max(each for each in known if each < batch),
            min(each for each in known if each > batch),
        )
        ran = (self.table.served_at(each, self.context) for each in near)
        return all(levels in {each.levels for each in own} for own in ran)

    def reference_us(self, batch: int) -> float | None:
        return self.table.reference_us(batch, self.context)

    def split(self, batch: int, levels: int) -> str:
        """By the line through the shortest and the longest K that ran."""
        ran = self.table.served_at(batch, self.context)
        widths = sorted({each.width for each in ran})
        if len(widths) < 3 or widths[0] > 1:
            return ""
        ms = {each.width: each.step_us.value / 1e3 for each in ran}
        n, m = widths[1], widths[-1]
        token_ms = (ms[m] - ms[n]) / (m - n)
        start_ms = ms[n] - ms[1] - token_ms * (n - 1)
        if min(token_ms, start_ms) < 0.0:
            return ""
        return (
            f"Of a step at batch {batch}, {ms[1]:.2f} ms are plain decoding's, each "
            f"token drafted and verified adds {token_ms:.2f}, and drafting at all "
            f"{start_ms:.2f}."
        )


@dataclass(frozen=True)
class OfEstimate:
    """A table of public kernel rows or of a data sheet: the forward's growth alone.

    Host and drafter are in no kernel's time, so the growth of other servers' steps
    stands beside it with equal weight.
    """

    table: CostTable
    context: float
    outside: Outside = "refuse"
    drafting: str = ""

    @property
    def title(self) -> str:
        return self.table.title

    def caveats(self, batch: int) -> Caveats:
        return self.table.costs(batch, self.context, self.outside).caveats

    def batches(self) -> tuple[int, ...]:
        return _batches(self.table, self.context)

    def reference_drafts(self, batch: int) -> int:
        self.table.costs(batch, self.context, self.outside)
        return 0

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        cost_us = self.table.step_cost_us(batch, self.context, self.outside)
        if width == 1:
            return StepRatio(ONE, "estimate")
        if batch * width >= len(cost_us):
            raise DataError(
                f"{self.table.path}: has no cost of {width} tokens a request at batch "
                f"{batch}; verify fewer"
            )
        grown = float(cost_us[batch * width] / cost_us[batch])
        value = math.sqrt(grown * width**EXPONENT)
        return StepRatio(around(value, ESTIMATE_ERROR), "estimate")

    def reference_us(self, batch: int) -> None:
        return None

    def split(self, batch: int, levels: int) -> str:
        return ""


@dataclass(frozen=True)
class Unserved:
    """No table and no run: what steps of other servers take."""

    asked: tuple[int, ...] = (1,)
    title: str = "servers of public runs"
    drafting: str = ""
    table: None = None
    context: None = None

    def caveats(self, batch: int) -> Caveats:
        return ()

    def batches(self) -> tuple[int, ...]:
        return self.asked

    def reference_drafts(self, batch: int) -> int:
        return 0

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        return unserved(width)

    def reference_us(self, batch: int) -> None:
        return None

    def split(self, batch: int, levels: int) -> str:
        return ""


def _batches(table: CostTable, context: float) -> tuple[int, ...]:
    """Those of a table that reach a context, or its own longest one."""
    far = min(context, table.fit.domain["context"][1])
    return tuple(b for b in table.axes.batch if table.contexts(b)[1] >= far)
