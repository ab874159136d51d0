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

    An expert that g consecutive tokens do not use is missing from g - n + 1 windows.
    """
    tokens, layers, _ = routes.shape
    experts, token = int(routes.max()) + 1, np.arange(tokens)[:, None, None]
    name = routes.astype(np.int64) + experts * np.arange(layers)[None, :, None]
    name, when = np.divmod(np.unique(name * tokens + token), tokens)
    first = np.diff(name, prepend=-1) != 0
    last = np.append(first[1:], True)
    before = when - np.where(first, 0, np.roll(when, 1) + 1)
    gap = np.concatenate([before, tokens - 1 - when[last]])
    layer = np.concatenate([name, name[last]]) // experts
    gaps = np.bincount(layer * (tokens + 1) + gap, minlength=layers * (tokens + 1))
    n = np.arange(1, width + 1)
    missing = np.maximum(np.arange(tokens + 1)[:, None] - n + 1, 0)
    seen = np.bincount(name[first] // experts, minlength=layers)[:, None]
    lacking = gaps.reshape(layers, tokens + 1) @ missing
    union: Floats = np.pad(seen - lacking / (tokens - n + 1), ((0, 0), (1, 0)))
    return union
