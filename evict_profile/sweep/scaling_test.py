"""Does a model cost its layers times one layer? Measured, not assumed.

Half of the layers, scaled up, are compared with all that are open. Fewer layers have
a smaller working set, and on a GPU a smaller share of launches hidden behind work, so
the error says how far to trust a cost that was scaled to the whole model.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.cells import Cell
from evict_profile.stats import median_interval
from evict_profile.sweep.client import Runner
from evict_profile.sweep.plan import sample_seed

REPEATS = 10


@dataclass(frozen=True)
class ScalingTest:
    """Scaled over measured latency, less one, with its 95 % interval."""

    small_layers: int
    large_layers: int
    small_us: float
    large_us: float
    error: float
    error_low: float
    error_high: float

    def sentence(self) -> str:
        """The result in plain words."""
        return (
            f"layer scaling: {self.small_layers} layers, scaled to "
            f"{self.large_layers}, miss the measured by {self.error:+.1%} "
            f"(95 % interval {self.error_low:+.1%}..{self.error_high:+.1%})"
        )


def run_scaling_test(runner: Runner, cell: Cell, layers: int) -> ScalingTest:
    """Measure half the layers and all of them in turns, on the same routes."""
    small = layers // 2
    times_us = np.empty((REPEATS, 2))
    for repeat in range(REPEATS):
        seeds = [sample_seed(0, -2, cell, repeat)]
        for column, count in enumerate((small, layers)):
            sample = runner.measure(cell, seeds, count)[0]
            times_us[repeat, column] = sample["clock_us"]
    errors = times_us[:, 0] * (layers / small) / times_us[:, 1] - 1.0
    found = median_interval(1.0 + errors)
    small_us, large_us = np.median(times_us, axis=0).tolist()
    return ScalingTest(
        small_layers=small,
        large_layers=layers,
        small_us=small_us,
        large_us=large_us,
        error=found.median - 1.0,
        error_low=found.low - 1.0,
        error_high=found.high - 1.0,
    )
