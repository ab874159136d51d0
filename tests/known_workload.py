"""What a drafter brings on a workload that nobody ran, for the table of `known_run`."""

import numpy as np

from evict_profile.workload import (
    Acceptance,
    BatchGrowth,
    CalibrationError,
    DraftClock,
    Drafting,
    LinkCurves,
    UnionGrowth,
)

TOKENS = np.arange(33.0)
ACCEPTANCE = Acceptance(
    workload="code",
    steps=100,
    scores=(0.0, 0.25, 0.5, 1.0),
    acceptances=((0.0, 0.25, 0.5, 0.75), (0.0, 0.125, 0.25, 0.5)),
    continuation=(0.5, 0.125, 0.0625),
    held_out={
        "raw": CalibrationError(0.2, 0.3),
        "calibrated": CalibrationError(0.01, 0.1),
    },
    links=LinkCurves(
        scores=(0.0, 0.5, 1.0), acceptances=((0.0, 0.5, 0.875), (0.0, 0.25, 0.25))
    ),
)
GROWTH = UnionGrowth(
    workload="code",
    is_guess=False,
    union=tuple((4.0 + 0.5 * np.maximum(TOKENS - 1.0, 0.0)).tolist()),
    by_batch=(
        BatchGrowth(1, tuple((4.0 + 0.25 * np.maximum(TOKENS[:17] - 1, 0)).tolist())),
    ),
)
DRAFTING = Drafting(
    workload="code",
    engine="a test",
    batches=(
        DraftClock(1, (0.0, 100.0, 250.0, 450.0), 40.0, 10.0),
        DraftClock(4, (0.0, 400.0, 900.0, 1500.0), 80.0, 20.0),
    ),
)
