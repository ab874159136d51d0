"""How fast the machine is just now: one small fixed forward, timed.

A machine that others share changes its speed by a half within minutes. So whatever is
timed stands between two references, and is told at the speed of one of them.
"""

from statistics import median

import numpy as np
import torch
from torch import Tensor

from runners.tree_decoding.clocks import now
from runners.tree_decoding.head import causal
from runners.tree_decoding.layout import Hall, Place, make_layout
from runners.tree_decoding.verifier import Verifier

TOKENS, CONTEXT = 8, 64
RUNS = 7
"""Forwards whose median stands for a moment, where single ones are too noisy."""


class Reference:
    """Eight tokens of text behind 64 others; what the cache holds does not matter."""

    def __init__(self, verifier: Verifier, hall: Hall, text: Tensor) -> None:
        self.verifier, self.device = verifier, hall.device
        places = CONTEXT + np.arange(TOKENS)
        place = Place(0, CONTEXT, causal(TOKENS), places)
        self.layout = make_layout([place], hall)
        self.ids = text[:TOKENS].long().to(self.device)

    @torch.inference_mode()
    def us(self) -> float:
        """Time of one forward."""
        routes = self.verifier.routes(TOKENS)
        begun = now(self.device)
        self.verifier.verify(self.ids, self.layout, routes)
        return (now(self.device) - begun).us

    def settled_us(self) -> float:
        """Median of several."""
        return median(self.us() for _ in range(RUNS))
