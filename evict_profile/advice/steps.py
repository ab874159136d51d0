"""Where a step's time is known from, for one question: how much to draft.

Every source answers with a ratio: a step over the reference step of its batch, which is
plain decoding, or the smallest K where a server ran no plain decoding. A sweep's table
has both steps, a served table has what was served and what lies near it, an estimated
table has the growth of the forward alone. Without any there are steps of other servers.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from evict_profile.advice.drafting import OWN, drafting_of_level
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace
from evict_profile.served.growth import StepRatio, estimated, unserved
from evict_profile.served.step import ServedStep
from evict_profile.served.table import ServedTable
from evict_profile.stats import Estimate
from evict_profile.table import CostTable, Outside
from evict_profile.table.key import Caveats

Table = CostTable | ServedTable
ONE = Estimate(1.0, 1.0, 1.0)


def tp_of(table: Table) -> int | None:
    """The number of GPUs; None where no run of a server states it."""
    return table.key.tp if isinstance(table, CostTable) else table.tp


@dataclass(frozen=True)
class Steps(ABC):
    """Steps by batch, width and levels; `table` is the file behind them, if any.

    Attributes:
        context: the tokens in a request's cache; None where no one stated them.
        estimated: growth alone is known; then no length and no schedule is chosen.
    """

    table: Table | None
    context: float | None
    estimated: ClassVar[bool] = False

    @property
    def drafting(self) -> str:
        """What is known of the time of drafting; "" where it is inside the steps."""
        return ""

    @abstractmethod
    def batches(self) -> tuple[int, ...]: ...

    @abstractmethod
    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        """A step over the reference's; a `DataError` where it is not known."""

    def caveats(self, batch: int) -> Caveats:
        return ()

    def reference_drafts(self, batch: int) -> int:
        """K of the reference step, 0 of plain decoding; a `DataError` if unknown."""
        return 0

    def reference_us(self, batch: int) -> float | None:
        return None

    def split(self, batch: int, levels: int) -> str:
        """What a step of a chain of K is spent on, in one line; "" if not known."""
        return ""


@dataclass(frozen=True)
class OfTable(Steps):
    """A table of a sweep, and a drafter's time: measured, given or assumed."""

    table: CostTable
    context: float
    served: ServedStep

    @property
    def drafting(self) -> str:
        return self.served.drafting.workload

    def batches(self) -> tuple[int, ...]:
        return _batches(self.table, self.context)

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        ratio = self.served.ratio(batch, width, levels, self.context)
        return StepRatio(ratio, "table")

    def caveats(self, batch: int) -> Caveats:
        return self.served.caveats_at(batch, self.context)

    def reference_us(self, batch: int) -> float:
        return self.served.us(batch, 1, 0, self.context).value

    def split(self, batch: int, levels: int) -> str:
        if self.served.assumes_drafting:
            return ""
        clock, plain = self.served.drafting.at(batch), self.reference_us(batch) / 1e3
        whole = self.served.us(batch, 1 + levels, levels, self.context).value / 1e3
        drafting = clock.drafted_us(levels) / 1e3
        rest = (clock.rest_us(levels) - clock.rest_us(0)) / 1e3
        return (
            f"Of a step of K = {levels} at batch {batch}, {whole:.2f} ms, plain "
            f"decoding takes {plain:.2f}, verification of the drafts "
            f"{whole - plain - drafting - rest:.2f}, drafting {drafting:.2f} and the "
            f"rest {rest:.2f}."
        )


@dataclass(frozen=True)
class OfServed(Steps):
    """Runs of one server; drafting is inside its steps."""

    table: ServedTable
    context: float | None = None

    def batches(self) -> tuple[int, ...]:
        return self.table.batches(self.context)

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        longest = max(each.levels for each in self.table.settings)
        if levels > 2 * longest:
            raise DataError(
                f"{self.table.path}: K = {levels} is more than twice the longest that "
                f"was served, {longest}; serve it"
            )
        return self.table.ratio(batch, width, levels, self.context)

    def caveats(self, batch: int) -> Caveats:
        if batch in self.batches():
            return ()
        if self.table.is_plain(batch, self.context):
            return (f"at batch {batch} plain decoding was served, and no draft",)
        return (f"batch {batch} was not served",)

    def reference_drafts(self, batch: int) -> int:
        return self.table.reference(batch, self.context).drafts

    def reference_us(self, batch: int) -> float | None:
        return self.table.reference_us(batch, self.context)


@dataclass(frozen=True)
class OfEstimate(Steps):
    """A table of public kernel rows or of a data sheet: the forward's growth alone."""

    table: CostTable
    context: float
    outside: Outside = "refuse"
    estimated: ClassVar[bool] = True

    def batches(self) -> tuple[int, ...]:
        return _batches(self.table, self.context)

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        cost_us = self.table.step_cost_us(batch, self.context, self.outside)
        if width == 1:
            return StepRatio(ONE, "estimate")
        if batch * width >= len(cost_us):
            raise DataError(
                f"{self.table.path}: has no cost of {width} tokens a request at batch "
                f"{batch}; verify fewer"
            )
        return estimated(float(cost_us[batch * width] / cost_us[batch]), width)

    def caveats(self, batch: int) -> Caveats:
        return self.table.costs(batch, self.context, self.outside).caveats


@dataclass(frozen=True)
class Unserved(Steps):
    """No table and no run: what steps of other servers take."""

    table: None = None
    context: None = None
    asked: tuple[int, ...] = (1,)
    estimated: ClassVar[bool] = True

    def batches(self) -> tuple[int, ...]:
        return self.asked

    def ratio(self, batch: int, width: int, levels: int) -> StepRatio:
        return unserved(width)


def _batches(table: CostTable, context: float) -> tuple[int, ...]:
    """Those of a table that reach a context, or its own longest one."""
    far = min(context, table.fit.domain["context"][1])
    return tuple(b for b in table.axes.batch if table.contexts(b)[1] >= far)


def served_step(
    table: CostTable,
    context: float,
    level_ms: float | None,
    kind: str,
    outside: Outside,
) -> ServedStep:
    """A sweep's steps; a drafter that is not the model's own needs a time."""
    if level_ms is None and not table.drafting and kind not in OWN:
        raise ConfigError(
            f"--drafter {kind}: {table.path} has no time of it; give that of one of "
            "its forwards with --draft-level-ms"
        )
    served = replace(ServedStep.of(table, context=context), outside=outside)
    if level_ms is None:
        return served
    return replace(served, drafting=drafting_of_level(table, level_ms, kind))
