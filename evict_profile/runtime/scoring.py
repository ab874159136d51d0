"""What scores nodes, by what the caller knows of them and where the decision runs.

A calibration tells acceptance by link where parents are known, by depth where depths
are, and by the mean of all depths otherwise, which a plan then says. What it needs on
a GPU is put there once, since copies in every step would cost more than they bring.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime import decision_cpu, decision_gpu
from evict_profile.runtime.calibration import Calibration
from evict_profile.table import CostTable


class Scoring:
    """A calibration at work, or none: then the drafter is believed."""

    def __init__(self, calibration: Calibration | None, table: CostTable) -> None:
        """The table says how deep links are followed: as deep as its engine drafts."""
        self.calibration = calibration
        self._table = table
        self._conditional = calibration.conditional_scorer if calibration else None
        self._by_depth = calibration is not None and calibration.by_depth
        self.on_device = lru_cache(None)(self._calibrate_on)
        self._follow_on = lru_cache(None)(self._follow_links_on)

    def on_cpu(
        self, depth: NDArray[Any] | None, parent: NDArray[Any] | None
    ) -> tuple[decision_cpu.Calibrate | None, NDArray[Any] | None]:
        """The last two arguments of `decision_cpu.decide`."""
        if self.calibration is None:
            return None, None
        return self.calibration.scoring(depth, parent)

    def depths(self, depth: Tensor, beside_us: Tensor | None) -> decision_gpu.Depths:
        """Depths as a device reads them, with the time beside verification by level."""
        return decision_gpu.Depths(depth, self._by_depth, beside_us)

    def parents(self, parent: Tensor) -> decision_gpu.Parents | None:
        """Parents as a device reads them; None without links, which alone need them.

        Raises:
            PlanError: there are links, and no depth is known to follow them to.
        """
        worth_of = self._follow_on(parent.device)
        return decision_gpu.Parents(parent, worth_of) if worth_of else None

    def caveats(self, depth: Tensor | None, parent: Tensor | None) -> tuple[str, ...]:
        """In what a plan made with these is not scored as well as it could be."""
        by_links = self._conditional is not None and parent is not None
        if self._by_depth and depth is None and not by_links:
            return ("calibrated for the mean of all depths: none was given",)
        return ()

    def _calibrate_on(self, device: torch.device) -> decision_gpu.Calibrate | None:
        return self.calibration.on_device(device) if self.calibration else None

    def _follow_links_on(
        self, device: torch.device
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        if self._conditional is None:
            return None
        if self._table.drafting is None:
            raise PlanError(
                f"{self._table.path}: no time of drafting is known, hence no depth to "
                "follow links to on a GPU; give path_prob.cpu() and parent.cpu(), or "
                "leave parents out"
            )
        return self._conditional.on_device(device, self._table.drafting.max_depth)
