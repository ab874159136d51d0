"""What a recorded step costs, at a table's prices: what ran, and what drafting adds."""

from functools import cached_property

import numpy as np

from evict_profile.budgets.load import BudgetRecord, Steps
from evict_profile.cost_model import padded_tokens
from evict_profile.runtime import CostTable
from evict_profile.stats import Floats
from evict_profile.table import Drafting

BATCH = 1


class Prices:
    """The prices of one recording's steps, of one request alone."""

    def __init__(
        self, table: CostTable, recording: BudgetRecord, speed: float = 1.0
    ) -> None:
        """Draft times are the table's; where it has none, the recording's clocks.

        `speed` brings the recording's times to those of the table; see
        `CostTable.speed_over`.
        """
        self.table, self.recording, self._speed = table, recording, speed
        clocks, about = recording.metadata.clocks, recording.about
        self._drafting = table.drafting or Drafting.at_speed(
            clocks, "the recording's own clocks", about.engine, speed
        )

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What these prices had to assume."""
        if self._drafting is None:
            beside: tuple[str, ...] = (
                "drafting and the host are free: nobody has clocked them",
            )
        else:
            beside = self._drafting.caveats(BATCH)
        return (*self.table.caveats, *beside, *self._outside())

    def step_us(self, steps: Steps, verify_us: Floats) -> Floats:
        """Whole steps whose verification takes so long, float64 [steps]."""
        whole_tree = self.recording.about.nodes + 1
        settings = self.recording.settings
        routing_us = np.array([each.routing_us for each in settings])[steps.setting]
        routing_us = self._speed * routing_us * steps.verified / whole_tree
        us: Floats = verify_us + self.beside_us + routing_us
        return us

    def verify_us(self, steps: Steps, union: Floats) -> Floats:
        """The target's forwards, if they wake this many experts, float64 [steps].

        Without what routing within a budget adds.
        """
        table = self.table
        tokens = padded_tokens(steps.verified, BATCH, table.axes.ladder)
        low, high = table.fit.domain["context"]
        context = np.clip(steps.context, low, high)
        return self.table.cost.price(tokens, union, context, BATCH)

    @cached_property
    def beside_us(self) -> float:
        """Drafting a whole tree, and the rest of a step."""
        if self._drafting is None:
            return 0.0
        return self._drafting.at(BATCH).overhead_us(self.recording.about.depth)

    def _outside(self) -> tuple[str, ...]:
        """What lies outside the table: contexts are priced at its edge."""
        steps = self.recording.steps
        asked = {"context": steps.context, "tokens": steps.verified}
        return tuple(
            f"{axis} {seen.min()}..{seen.max()} of the recording, {low}..{high} in "
            "the table"
            for axis, seen in asked.items()
            for low, high in [self.table.fit.domain[axis]]
            if seen.min() < low or high < seen.max()
        )
