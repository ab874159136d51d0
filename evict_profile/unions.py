"""Counts distinct experts that tokens activate, from their routes.

Routes are int [tokens, layers, k]: the experts of each token in each MoE layer.
"""

import numpy as np
from numpy.typing import NDArray

from evict_profile.stats import Floats

Routes = NDArray[np.integer]


def union_by_tokens(routes: Routes, experts: int) -> Floats:
    """Mean over layers of distinct experts of the first 0..t tokens, [t + 1]."""
    tokens, layers, _ = routes.shape
    name = routes.astype(np.int64) + experts * np.arange(layers)[None, :, None]
    when = np.broadcast_to(np.arange(1, tokens + 1)[:, None, None], name.shape)
    first = np.full(layers * experts, tokens + 1)
    # Written backwards, so that what stays is where each expert was first activated.
    first[name.ravel()[::-1]] = when.ravel()[::-1]
    activated = np.bincount(first, minlength=tokens + 2)[: tokens + 1]
    union: Floats = np.cumsum(activated) / layers
    return union


def union_by_window(routes: Routes, width: int) -> Floats:
    """Mean over all windows of n consecutive tokens, n = 0..width, [layers, width + 1].

    A use of an expert counts in the windows that hold it and no earlier use.
    """
    tokens, layers, _ = routes.shape
    experts, token = int(routes.max()) + 1, np.arange(tokens)[:, None, None]
    name = routes.astype(np.int64) + experts * np.arange(layers)[None, :, None]
    name, used = np.divmod(np.unique(name * tokens + token), tokens)
    before = np.where(np.diff(name, prepend=-1) != 0, -1, np.roll(used, 1))
    union = np.zeros((layers, width + 1))
    for n in range(1, width + 1):
        starts = np.minimum(used, tokens - n) - np.maximum(before, used - n)
        counted = np.bincount(name // experts, np.maximum(starts, 0), layers)
        union[:, n] = counted / (tokens - n + 1)
    return union
