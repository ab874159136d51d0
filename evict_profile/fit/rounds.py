"""What a decoding round takes beside its forward and drafting.

A line in the drafts, by least squares without negative parts, where it rises by more
than the noise of the longest round; else the median of the measured rounds.
"""

import numpy as np
from scipy.optimize import nnls

from evict_profile.cost_model import ForwardCost
from evict_profile.drafting import DraftClock
from evict_profile.records import replace


def by_rounds(clock: DraftClock, cost: ForwardCost, noise: float) -> DraftClock:
    """The clock with the rest of its rounds, if any were timed; `noise` is relative."""
    if not clock.rounds:
        return clock
    us, drafts = np.array([timed.us for timed in clock.rounds]), clock.drafts
    beside_us = us - clock.parts_us(cost)
    line = np.column_stack((np.ones_like(drafts), drafts))
    fixed_us, token_us = map(float, nnls(line, beside_us)[0])
    if token_us * np.ptp(drafts) <= noise * us.max():
        fixed_us, token_us = max(0.0, float(np.median(beside_us))), 0.0
    return replace(clock, fixed_us=round(fixed_us, 1), token_us=round(token_us, 3))
