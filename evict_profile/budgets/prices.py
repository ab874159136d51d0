"""What a recorded step costs, at a table's prices: what ran, and what drafting adds."""

from functools import cached_property

import numpy as np
import pandas as pd

from evict_profile.budgets.load import BudgetRecord
from evict_profile.cost_model import padded_tokens
from evict_profile.stats import Floats
from evict_profile.table import CostTable, Drafting

BATCH = 1


class RecordPrices:
    """The prices of one recording's steps, of one request alone."""

    def __init__(self, table: CostTable, record: BudgetRecord) -> None:
        """Draft times are the table's; where it has none, the recording's clocks.

        What the recorder clocked is brought to the speed of the table's machine.
        """
        about = record.about
        self.table, self.record = table, record
        self._speed = table.speed_over(about.engine, about.reference_us)
        self._routing_us = np.array([each.routing_us for each in record.settings])
        self._drafting = table.drafting or Drafting.at_speed(
            record.clocks,
            "the recording's own clocks",
            about.engine,
            self._speed,
        )

    @cached_property
    def beside_us(self) -> float:
        """Drafting a whole tree, and the rest of a step."""
        if self._drafting is None:
            return 0.0
        return self._drafting.at(BATCH).overhead_us(self.record.about.depth)

    def verify_us(self, steps: pd.DataFrame, union: Floats) -> Floats:
        """The target's forwards, if they activate this many experts, float64 [steps].

        Without what routing within a budget adds.
        """
        table = self.table
        tokens = padded_tokens(steps["verified"].to_numpy(), BATCH, table.axes.ladder)
        context = np.clip(steps["context"].to_numpy(), *table.fit.domain["context"])
        return table.cost.price(tokens, union, context, BATCH)

    @property
    def interval(self) -> tuple[float, float]:
        """Of these prices, the median as shares of them: low, high."""
        steps = self.record.steps
        price = self.table.price(BATCH, float(steps["context"].median()), "clamp")
        return price.interval_at(steps["verified"].to_numpy())

    def step_us(self, steps: pd.DataFrame, verify_us: Floats) -> Floats:
        """Whole steps whose verification takes so long, float64 [steps].

        Routing was clocked on whole trees, and is charged by the share that ran.
        """
        share = steps["verified"].to_numpy() / (self.record.about.nodes + 1)
        routing_us = self._routing_us[steps["setting"]] * self._speed * share
        us: Floats = verify_us + self.beside_us + routing_us
        return us

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What these prices had to assume."""
        if self._drafting is None:
            clocked: tuple[str, ...] = (
                "drafting and the host are free: nobody has clocked them",
            )
        else:
            clocked = self._drafting.caveats(BATCH)
        return (*self.table.caveats, *clocked, *self._outside())

    def _outside(self) -> tuple[str, ...]:
        """What lies outside the table: contexts are priced at its edge."""
        found = []
        for axis, name in (("context", "context"), ("tokens", "verified")):
            seen, (low, high) = self.record.steps[name], self.table.fit.domain[axis]
            if seen.min() < low or high < seen.max():
                found.append(
                    f"{axis} {seen.min()}..{seen.max()} of the recording, "
                    f"{low}..{high} in the table"
                )
        return tuple(found)
