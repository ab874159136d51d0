"""From path probability to acceptance: a non-decreasing piecewise-linear map.

A drafter's path probabilities rank nodes well and price them badly. A map that never
decreases keeps the ranking, and so the set of the best k nodes, and mends the benefit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.pricing import Floats
from evict_profile.runtime.on_cpu import Probabilities


@dataclass(frozen=True)
class Calibration:
    """Acceptance at some scores, linear between them.

    Attributes:
        scores: path probabilities, increasing from 0 to 1.
        acceptances: share accepted at each, non-decreasing, 0 at score 0, so that
            padding earns nothing.

    Raises:
        PlanError: scores or acceptances that are not so.
    """

    scores: tuple[float, ...]
    acceptances: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            x, y = np.array(self.scores, float), np.array(self.acceptances, float)
        except (TypeError, ValueError) as error:
            raise PlanError("calibration must hold plain numbers") from error
        paired = x.ndim == 1 and x.shape == y.shape and len(x) >= 2
        if not paired or x[0] != 0.0 or x[-1] != 1.0:
            raise PlanError("calibration needs scores from 0 to 1, one acceptance each")
        if not (np.all(np.diff(x) > 0.0) and np.all(np.diff(y) >= 0.0)):
            raise PlanError("calibration must not fall, and its scores must increase")
        if y[0] != 0.0 or not y[-1] <= 1.0:
            raise PlanError("calibrated acceptance must be 0 at score 0, and 1 at most")

    def on_cpu(self, path_prob: Probabilities) -> Floats:
        """Acceptance of each node, float64, shaped as given."""
        return np.interp(path_prob, self.scores, self.acceptances)

    def on_device(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """The same in tensor operations; its knots are put on the device now."""
        x, y = (
            torch.tensor(knots, dtype=torch.float64, device=device)
            for knots in (self.scores, self.acceptances)
        )

        def calibrate(path_prob: Tensor) -> Tensor:
            score = path_prob.double().clamp(0.0, 1.0)
            right = torch.searchsorted(x, score.contiguous()).clamp(1, len(x) - 1)
            share = (score - x[right - 1]) / (x[right] - x[right - 1])
            return torch.lerp(y[right - 1], y[right], share)

        return calibrate
