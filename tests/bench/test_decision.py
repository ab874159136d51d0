"""The timing of decisions: fair turns, honest rivals, and a table that covers all."""

import time

import numpy as np
import pytest
import torch

from evict_profile.bench.decision import (
    made_up_table,
    plain_numpy,
    random_drafts,
    take_turns,
    time_size,
)
from evict_profile.runtime import Truncator, select_widths


@pytest.mark.parametrize(("batch", "nodes"), [(1, 60), (4, 16)])
def test_the_plain_rival_decides_the_same(batch: int, nodes: int) -> None:
    """Otherwise the comparison would be of two different things."""
    drafts = random_drafts(batch, nodes)
    cost_us = made_up_table(batch, nodes).step_cost_us(batch, 2048)
    ours = select_widths(drafts, cost_us)
    assert np.array_equal(ours.numpy(), plain_numpy(drafts.numpy(), cost_us))


def test_drafts_are_trees() -> None:
    """A child is never more probable than its parent, and stands after it."""
    drafts = random_drafts(3, 40)
    for node in range(2, 40):
        assert torch.all(drafts[:, node] <= drafts[:, (node - 2) // 2])


def test_the_made_up_table_prices_every_tree() -> None:
    """A plan of the largest size is neither refused nor marked."""
    truncator = Truncator(
        made_up_table(2, 100), drafts="topk", acceptance="target-only"
    )
    assert truncator.plan(random_drafts(2, 100), 2048).marks == ()


def test_a_slower_call_is_measured_as_slower() -> None:
    """By what it waits, within the noise of a loaded machine."""
    calls = {"short": lambda: time.sleep(1e-3), "long": lambda: time.sleep(4e-3)}
    found = take_turns(calls, lambda: None, rounds=3)
    assert found["short"].median >= 1e3
    assert found["long"].median >= 4e3
    assert found["long"].median > found["short"].median


def test_each_contender_is_timed() -> None:
    """One row each, with the interval around the median."""
    rows = list(time_size(torch.device("cpu"), 1, 16, rounds=6))
    assert {"plan, batch", "plain numpy", "torch.sort"} <= {row.what for row in rows}
    assert all(0.0 < row.low_us <= row.median_us <= row.high_us for row in rows)
