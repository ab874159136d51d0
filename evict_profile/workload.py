"""What a cost table knows of a workload: the part of it that is not a price.

The same prices serve every workload, but a workload decides how many experts its trees
wake, how often the drafter's tokens are accepted and how long it takes to draft them.
`evict-profile calibrate` measures these on traces (evict_profile.calibrate) and writes
them into the table, where the runtime finds them.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.pricing import grown_union
from evict_profile.stats import Floats


@dataclass(frozen=True)
class BatchGrowth:
    """U(t) of so many requests verified together; t = 0..batch * width.

    Entries below `batch` are of as many requests that verify their roots alone.
    """

    batch: int
    union: tuple[float, ...]


@dataclass(frozen=True)
class UnionGrowth:
    """U(t): mean distinct experts a layer when t tokens run; t = 0..len - 1.

    `by_batch` holds the batches that were measured on the workload. Another batch has
    the growth of the nearest of them in ratio, and none has `union`, which also says
    how a batch goes on beyond its own end.
    """

    workload: str
    is_guess: bool
    union: tuple[float, ...]
    by_batch: tuple[BatchGrowth, ...] = ()

    def at(self, tokens: Floats, batch: float) -> Floats:
        """The union when so many tokens of a batch run, float64 [places]."""
        batches = {each.batch: np.array(each.union) for each in self.by_batch}
        return grown_union(tokens, batch, np.array(self.union), batches)


@dataclass(frozen=True)
class CalibrationError:
    """How far scores are from acceptance on steps that taught nothing to them.

    Attributes:
        ece: expected calibration error, mean |score - share accepted| over bins.
        brier: mean squared difference between score and outcome.
    """

    ece: float
    brier: float


@dataclass(frozen=True)
class LinkCurves:
    """From a node's probability given its parent to acceptance given its parent's.

    A node's chance is the product of these along its path, which ranks nodes better
    than a curve over the product of probabilities does.

    Attributes:
        scores: probabilities given the parent, increasing from 0 to 1.
        acceptances: share accepted at each score, linear between. Row r serves the
            r-th best of siblings from 0, the last row all after it; 0 at score 0,
            non-decreasing, and at most 1.
    """

    scores: tuple[float, ...]
    acceptances: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Acceptance:
    """From path probability to acceptance, by depth, as measured on a workload.

    Attributes:
        workload: what the drafter drafted.
        steps: draft trees that it was learnt from.
        scores: path probabilities, increasing from 0 to 1.
        acceptances: share accepted at each score, linear between. Row d - 1 serves
            depth d, the last row all deeper; 0 at score 0, non-decreasing in score,
            and no row above the row before it, so that a child never beats its parent.
        continuation: mean probability that a node's child of rank r is accepted,
            given that the node is; r = 0 is the child of the highest score.
        held_out: errors on replies that were left out, "raw" and "calibrated".
        links: acceptance level by level, for a runtime that knows nodes' parents.
    """

    workload: str
    steps: int
    scores: tuple[float, ...]
    acceptances: tuple[tuple[float, ...], ...]
    continuation: tuple[float, ...]
    held_out: dict[str, CalibrationError]
    links: LinkCurves | None = None


@dataclass(frozen=True)
class DraftClock:
    """What a step takes beside verification at a batch size, in microseconds.

    Attributes:
        batch: requests that draft together.
        draft_us: time to draft to depth d, cumulative; d = 0..deepest, 0 at d = 0.
        fixed_us: the rest of a step of tree decoding: acceptance, caches, host.
        plain_fixed_us: the rest of a step of plain decoding, which drafts nothing.
    """

    batch: int
    draft_us: tuple[float, ...]
    fixed_us: float
    plain_fixed_us: float


@dataclass(frozen=True)
class Drafting:
    """The time of drafting, as the engine that decodes measured it."""

    workload: str
    engine: str
    batches: tuple[DraftClock, ...]
