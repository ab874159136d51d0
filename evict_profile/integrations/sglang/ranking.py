"""By what drafted nodes are ranked: acceptance given their parents, where known.

Path probability is SGLang's own order. Conditional acceptance keeps other nodes of the
same number, and earns more by them; what the runtime prices a width by, a cut to that
width must keep.
"""

from functools import lru_cache

from torch import Tensor

from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.runtime.conditional import ConditionalScorer
from evict_profile.table import ConditionalAcceptance


class Ranking:
    """Nodes in the order of what they are worth, read where they lie.

    Nothing is copied to the host.
    """

    def __init__(self, curves: ConditionalAcceptance, levels: int) -> None:
        """Of trees that are drafted so many levels deep."""
        scorer = ConditionalScorer(curves)
        self._worth_on = lru_cache(None)(
            lambda device: scorer.on_device(device, levels)
        )

    def worth(self, drafted: Drafted) -> Tensor:
        """Acceptance of each node, float64 [B, M], on the device of the trees."""
        worth_of = self._worth_on(drafted.path_prob.device)
        return worth_of(drafted.path_prob, drafted.parent)
