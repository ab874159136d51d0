"""Routing is counted right."""

import torch

from runners.small_world.health import mean_union, routing_health, uniform_union


def test_health_of_a_known_routing() -> None:
    """Four of eight experts used in one layer, all evenly in the other."""
    even = torch.arange(16).view(1, 8, 2) % 8
    half = torch.arange(16).view(1, 8, 2) % 4
    health = routing_health(torch.cat([even, half]), 0.0, experts=8)
    assert (health.peak, health.worst, health.dead) == (1.5, 2.0, 4)


def test_union_of_windows() -> None:
    """Mean over windows and layers of the distinct experts; a rest is left out."""
    routes = torch.tensor([[[0, 1], [1, 2], [0, 1], [0, 1], [5, 6]]])
    assert mean_union(routes, 1) == 2.0
    assert mean_union(routes, 2) == 2.5
    assert mean_union(routes, 4) == 3.0


def test_uniform_union_is_what_random_routing_wakes() -> None:
    """One token wakes k; many wake all; between, as drawn."""
    assert uniform_union(64, 4, 1) == 4.0
    assert round(uniform_union(8, 2, 1000), 6) == 8.0
    torch.manual_seed(0)
    routes = torch.rand(1, 4000, 8).topk(2, dim=-1).indices
    assert abs(mean_union(routes, 4) - uniform_union(8, 2, 4)) < 0.1
