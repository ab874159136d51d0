"""Served tables from rows of batch, K and milliseconds, and a fake source of steps."""

from dataclasses import dataclass, field

from evict_profile.advice.advise import Gain
from evict_profile.advice.plan import DraftPlan
from evict_profile.advice.steps import ONE, OfServed, Steps
from evict_profile.errors import DataError
from evict_profile.served.growth import StepRatio
from evict_profile.served.run import Deployment, Run
from evict_profile.served.table import ServedTable
from evict_profile.stats import Estimate
from evict_profile.table import Key

UNKNOWN = "not stated"


def run(number, batch, drafts, step_ms, context=None, tp=None):
    return Run(
        source=f"runs.csv, run {number}",
        batch=batch,
        drafts=drafts,
        levels=drafts,
        topk=1,
        width=drafts + 1,
        step_us=1e3 * step_ms,
        context=context,
        deployment=Deployment(tp=tp),
    )


def served_table(*rows, engine=UNKNOWN, tp=None):
    """Of (batch, K, step in ms) or (batch, K, step in ms, context); `tp` if stated."""
    other = [UNKNOWN] * 3
    key = Key("RTX 4090", "gpt-oss-20b", UNKNOWN, tp or 1, 1, engine, UNKNOWN, *other)
    runs = (run(number, *row, tp=tp) for number, row in enumerate(rows, 1))
    return ServedTable(key, "1.0.0", tuple(runs))


SERVED = OfServed(served_table((1, 0, 10.0), (1, 3, 15.0)))


def plan_of(drafts, *batches):
    """One K that pays at these batches."""
    gain = Gain(drafts, Estimate(1.3, 1.2, 1.4), "table")
    return DraftPlan(dict.fromkeys(batches, 1.0), gain)


@dataclass(frozen=True)
class Planted(Steps):
    """Ratios of steps by batch and K, each certain to `error`, or to that of its K in
    `errors`; unknown elsewhere.
    """

    table: None = None
    context: None = None
    ratios: dict[int, dict[int, float]] = field(kw_only=True)
    basis: str = "table"
    error: float = 0.0
    bases: dict[int, str] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)

    def batches(self):
        return tuple(self.ratios)

    def ratio(self, batch, width, levels):
        if batch not in self.ratios:
            raise DataError(f"batch {batch} is not planted")
        if width == 1:
            return StepRatio(ONE, self.basis)
        if levels not in self.ratios[batch]:
            raise DataError(f"K = {levels} is not planted")
        value = self.ratios[batch][levels]
        far = 1.0 + self.errors.get(levels, self.error)
        known = self.bases.get(levels, self.basis)
        return StepRatio(Estimate(value, value / far, value * far), known)


def planted(ratios, *of):
    return Planted(None, None, *of, ratios=ratios)
