"""From the scores of a drafter to acceptance, as measured by `evict-profile calibrate`.

Each class refuses with a ValueError.
"""

from typing import Any

import numpy as np
from msgspec import Struct

from evict_profile.records import NotNegative
from evict_profile.stats import Floats


class CalibrationError(Struct, frozen=True):
    """Errors of scores against acceptance on held-out replies.

    `ece` is the mean |score - share accepted| over bins, `brier` the mean square.
    """

    ece: NotNegative
    brier: NotNegative


class ConditionalAcceptance(Struct, frozen=True):
    """Acceptance of a node whose parent is accepted, by its probability given that.

    A node's chance is the product along its path. Row r of `acceptances` serves the
    r-th best of siblings from 0, the last row all after it.
    """

    scores: tuple[float, ...]
    acceptances: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        check_curves("conditional", self.scores, self.acceptances, by_rank=True)


class Acceptance(Struct, frozen=True):
    """From path probability to acceptance, as measured on `steps` of a workload.

    `acceptances` is one row. `per_rank` is the mean probability that a node's child of
    rank r, by score, is accepted if the node is. `held_out` has the errors of "raw" and
    "calibrated" scores.
    """

    workload: str
    steps: int
    scores: tuple[float, ...]
    acceptances: tuple[tuple[float, ...], ...]
    per_rank: tuple[float, ...]
    held_out: dict[str, CalibrationError]
    conditional: ConditionalAcceptance | None = None

    def __post_init__(self) -> None:
        rows = self.acceptances
        check_curves("acceptances", self.scores, rows[0] if len(rows) == 1 else rows)
        check_per_rank("per_rank", self.per_rank)


def check_curves(
    name: str, scores: Any, acceptances: Any, by_rank: bool = False
) -> None:
    """A curve from 0 at score 0 to at most 1 at score 1; `by_rank`, rows of them."""
    x, y = _numbers(name, scores), _numbers(name, acceptances)
    if y.ndim != 1 + by_rank:
        raise ValueError(
            f"{name} needs a row of acceptances for each rank"
            if by_rank
            else f"{name} has several rows, and one is read; learn them again with "
            "evict-profile calibrate"
        )
    paired = x.ndim == 1 and x.shape == y.shape[-1:]
    if not paired or len(x) < 2 or not y.size or x[0] != 0.0 or x[-1] != 1.0:
        raise ValueError(f"{name} needs scores from 0 to 1, one acceptance each")
    if not (np.all(np.diff(x) > 0.0) and np.all(np.diff(y) >= 0.0)):
        raise ValueError(f"{name} must not fall, and its scores must increase")
    if np.any(y[..., 0] != 0.0) or not np.all(y[..., -1] <= 1.0):
        raise ValueError(f"{name}: acceptance must be 0 at score 0, and 1 at most")


def check_per_rank(name: str, chances: Any) -> None:
    values = _numbers(name, chances)
    if values.ndim != 1 or not (np.all(values >= 0) and values.sum() <= 1):
        raise ValueError(
            f"{name} must hold probabilities of siblings, which sum to 1 at the most"
        )


def _numbers(name: str, values: Any) -> Floats:
    try:
        return np.array(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold plain numbers, and each row of it equally many"
        ) from error
