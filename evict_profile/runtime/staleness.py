"""Does the table still describe this machine? Predicted against observed step times.

A driver, a clock limit or another engine build moves costs without changing a key. The
table no longer describes the machine when the median of observed / predicted is outside
the table's own interval, widened by the noise between two measurements of one cell.
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
    """The median ratio of observed over predicted, and where it is while the table
    holds; "unknown" with fewer than 16 steps."""

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
    """Keeps the last steps' times over their predictions."""

    def __init__(self, table: CostTable) -> None:
        """Watch for drift from a table."""
        self._low, self._high = table.watch_bounds
        self._ratios: deque[float] = deque(maxlen=WINDOW)

    def observe(self, observed_us: float, predicted_us: float) -> None:
        """Add one step: the time of the parts that the table includes, twice.

        Raises:
            ConfigError: a time that is not finite, or not above zero.
        """
        observed = number("observed_us", observed_us, LEAST_US)
        self._ratios.append(observed / number("predicted_us", predicted_us, LEAST_US))

    def report(self) -> Staleness:
        """The verdict on the last steps."""
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
