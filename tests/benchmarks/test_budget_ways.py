"""Kernels are believed where they route as tensor operations do."""

from itertools import product
from typing import Any

import pytest
import torch

from benchmarks.budget_ways import TRITON, Budgeted, disagreements
from benchmarks.routed_forwards import model_forward
from evict_profile.runtime.budget import MODES, RANKINGS


def kernels() -> list[Budgeted]:
    """Each mode and ranking, within 8 of 32 experts."""
    return [
        Budgeted(TRITON, mode, ranking, 8) for mode, ranking in product(MODES, RANKINGS)
    ]


def test_kernels_are_held_against_tensor_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here by Triton's interpreter; one that took another ranking would be found."""
    pytest.importorskip("triton", reason="triton is not installed")
    from evict_profile.runtime import budget_fused

    torch.manual_seed(0)
    router = model_forward("tiny", 1, 5, 8, torch.device("cpu")).layers[0].router
    assert not list(disagreements(router, kernels(), 5))
    right = budget_fused.route

    def wrong(*given: Any, **named: Any) -> Any:
        return right(*given, **{**named, "ranking": "mass"})

    monkeypatch.setattr(budget_fused, "route", wrong)
    found = list(disagreements(router, kernels(), 5))
    assert [each.ranking for each in found] == ["top-k", "top-k"]
