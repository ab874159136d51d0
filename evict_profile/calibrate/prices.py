"""Does the table price what the engine ran? The trace's own clocks beside its prices.

A table is made from forced routing; a recording verifies trees that a router routed.
Priced at the tokens and the union that were observed, the two should agree.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.pricing import ForwardCost
from evict_profile.stats import ErrorSummary, summarise_errors
from evict_profile.traces import Step, Trace

GROUPS = 20
GOOD_MEDIAN, GOOD_P90 = 0.05, 0.15
"""What the export gate asks of a fit on cells that it has not seen."""


@dataclass(frozen=True)
class PriceCheck:
    """Prices of recorded verifications against their times.

    Attributes:
        error: relative errors of the prices, over groups of steps of like price. A
            single step's time scatters with the machine; a group's median does not.
        ratio: median of measured over priced, over all steps.
        steps: how many there are.
    """

    error: ErrorSummary
    ratio: float
    steps: int

    @property
    def holds(self) -> bool:
        """Whether the prices are as near as a fit must be on unseen cells."""
        return self.error.median <= GOOD_MEDIAN and self.error.p90 <= GOOD_P90

    def __str__(self) -> str:
        verdict = (
            "the table prices natural routing in this engine"
            if self.holds
            else "the table does not price this engine's verification as it ran: "
            "sweep the same engine on the same machine, quiet, before a verdict"
        )
        return (
            f"verification took {self.ratio:.2f} of its price in the median (error of "
            f"the price: median {self.error.median:.1%}, p90 {self.error.p90:.1%} over "
            f"{self.error.cells} groups of {self.steps:,} steps): {verdict}"
        )


def check_prices(trace: Trace, cost: ForwardCost, speed: float) -> PriceCheck | None:
    """Price each timed step at what it verified; None without clocks or routes.

    `speed` brings the trace's clocks to the table's.
    """
    timed = [step for step in trace.steps if step.times and step.routes is not None]
    if not timed:
        return None
    clocks = [step.times.verify_us for step in timed if step.times]
    measured = speed * np.array(clocks)
    priced = np.array([_price_us(step, cost) for step in timed])
    groups = np.array_split(np.argsort(priced), min(GROUPS, len(priced)))
    medians = [
        np.array([np.median(us[group]) for group in groups])
        for us in (priced, measured)
    ]
    return PriceCheck(
        summarise_errors(*medians), float(np.median(measured / priced)), len(timed)
    )


def _price_us(step: Step, cost: ForwardCost) -> float:
    nodes = np.arange(len(step.parent))
    tokens, union = np.array([1.0 + len(nodes)]), np.array([step.union(nodes)])
    return float(cost.step_cost_us(tokens, union, 1, step.context)[0])
