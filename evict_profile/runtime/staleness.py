"""Whether a table still describes this machine: observed against predicted step times.

A driver, clock limit or engine build changes costs without a key. A table is stale when
the median of observed / predicted is outside its interval, widened by its noise.
"""

from collections import deque
from statistics import median
from typing import Literal

from msgspec import Struct

from evict_profile.runtime.checks import number
from evict_profile.table import CostTable

State = Literal["unknown", "holds", "drifted"]
WINDOW = 128
FEWEST = 16
LEAST_US = 1e-3


class Staleness(Struct, frozen=True):
    """Observed over predicted; "unknown" with fewer than 16 steps."""

    verdict: State
    ratio: float
    low: float
    high: float
    steps: int

    def __str__(self) -> str:
        return (
            f"{self.verdict}: observed / predicted {self.ratio:.3f} in the median of "
            f"{self.steps} steps, expected {self.low:.3f}..{self.high:.3f}"
        )


class StepWatch:
    def __init__(self, table: CostTable) -> None:
        self._low, self._high = table.watch_bounds
        self._ratios: deque[float] = deque(maxlen=WINDOW)

    def observe(self, observed_us: float, predicted_us: float) -> None:
        """Add one step: the time of the parts that the table includes, and its
        prediction.

        Raises:
            ConfigError: a time that is not finite, or not above zero.
        """
        observed = number("observed_us", observed_us, LEAST_US)
        self._ratios.append(observed / number("predicted_us", predicted_us, LEAST_US))

    def report(self) -> Staleness:
        ratio = median(self._ratios) if self._ratios else 1.0
        known = len(self._ratios) >= FEWEST
        verdict: State = "holds" if self._low <= ratio <= self._high else "drifted"
        return Staleness(
            verdict if known else "unknown",
            ratio,
            self._low,
            self._high,
            len(self._ratios),
        )
