"""How often the next level pays: a child's acceptance by rank, its parent accepted.

Before a level is drafted its path probabilities are unknown; what is known is how the
children of accepted nodes fared. Only parents that were expanded count: a parent
without a recorded child was a leaf of the draft. A child that was drafted and not
recorded lost its place in the tree to better nodes, and could have committed nothing.
"""

from collections.abc import Iterable

import numpy as np

from evict_profile.stats import Floats
from evict_profile.traces import Step


def continuation(steps: Iterable[Step], fan: int) -> Floats:
    """Share of accepted, expanded parents whose child of rank r was accepted.

    The root counts as an accepted parent. At most one child is accepted, so that the
    shares sum to no more than 1.

    Args:
        fan: children drafted for one parent.

    Returns:
        float64 [fan], r = 0..fan - 1; zeros where no parent was accepted.
    """
    hits, parents = np.zeros(fan), 0
    for step in steps:
        accepted_parent = np.concatenate([step.accepted, [True]])[step.parent]
        parents += len(np.unique(step.parent[accepted_parent]))
        hits += np.bincount(step.rank[step.accepted], minlength=fan)[:fan]
    return hits / max(parents, 1)
