"""Whether routing is healthy: every expert used, and none much more than others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from runners.small_world.target import loads


@dataclass(frozen=True)
class Health:
    """Routing of some tokens.

    Attributes:
        peak: load of the busiest expert over the mean load, mean over the layers.
        worst: the same of the worst layer.
        dead: experts that got no token, in all layers together.
        entropy: mean entropy of the router's distribution over that of uniform.
    """

    peak: float
    worst: float
    dead: int
    entropy: float

    def __str__(self) -> str:
        return (
            f"load max/mean {self.peak:.2f} (worst layer {self.worst:.2f})"
            f"  dead {self.dead}  entropy {self.entropy:.2f}"
        )


def routing_health(routes: Tensor, entropy: float, experts: int) -> Health:
    """Health of routes [layers, N, k] and their mean entropy in nats."""
    counts = torch.stack([loads(layer, experts) for layer in routes]).double()
    peaks = counts.amax(dim=1) / counts.mean(dim=1)
    return Health(
        peak=float(peaks.mean()),
        worst=float(peaks.max()),
        dead=int((counts == 0).sum()),
        entropy=entropy / float(torch.tensor(float(experts)).log()),
    )


def mean_union(routes: Tensor, tokens: int) -> float:
    """Distinct experts of so many consecutive tokens, mean over windows and layers."""
    layers, whole = routes.shape[0], routes.shape[1] // tokens
    windows = routes[:, : whole * tokens].reshape(layers * whole, -1)
    ordered = windows.sort(dim=1).values
    return 1.0 + float((ordered.diff(dim=1) > 0).sum(dim=1).double().mean())


def uniform_union(experts: int, top_k: int, tokens: int) -> float:
    """Expected distinct experts where each token draws its own uniformly."""
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))
