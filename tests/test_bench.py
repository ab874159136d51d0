"""The bench: policies on synthetic traces, and decisions timed in fair turns."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from evict_profile.bench import (
    plain_numpy,
    random_drafts,
    random_levels,
    take_turns,
    time_size,
    time_steps,
)
from evict_profile.replay.decisions import SCHEMA
from evict_profile.replay.policies import PAIR_CONDITIONAL, RATE
from evict_profile.replay.wrong_tables import shipped_table
from evict_profile.runtime import select_widths
from evict_profile.traces import synthetic
from tests.command import evict


@pytest.mark.parametrize(("batch", "nodes"), [(1, 60), (4, 16)])
def test_the_rival_in_numpy_decides_the_same(batch: int, nodes: int) -> None:
    drafts = random_drafts(batch, nodes)
    cost_us = 90.0 + 3.0 * np.arange(batch * (nodes + 1) + 1.0) ** 0.7
    ours = select_widths(drafts, cost_us)
    assert np.array_equal(ours.numpy(), plain_numpy(drafts.numpy(), cost_us))


def test_a_child_is_never_more_probable_than_its_parent() -> None:
    drafts = random_drafts(3, 40)
    for node in range(2, 40):
        assert torch.all(drafts[:, node] <= drafts[:, (node - 2) // 2])


def test_a_slower_call_is_measured_as_slower() -> None:
    calls = {"short": lambda: time.sleep(1e-3), "long": lambda: time.sleep(4e-3)}
    found = take_turns(calls, lambda: None, rounds=3)
    assert len(found["short"]) == len(found["long"]) == 3
    assert min(found["short"]) >= 1e3
    assert min(found["long"]) >= 4e3


@pytest.mark.parametrize(("batch", "nodes"), [(1, 16), (64, 60)])
def test_each_contender_is_timed(batch: int, nodes: int) -> None:
    table = shipped_table()
    assert table
    rows = time_size(table, "cpu", batch, nodes, 6)
    assert {"plan, batch", "plain numpy", "torch.sort"} <= {row.what for row in rows}
    assert all(0.0 < row.low_us <= row.median_us <= row.high_us for row in rows)


def test_each_policy_is_timed_through_whole_steps() -> None:
    table = shipped_table()
    assert table
    rows = time_steps(table, 2, 6)
    assert {RATE, PAIR_CONDITIONAL, "plain numpy"} <= {row.what for row in rows}
    assert all(row.median_us > 0.0 < row.over_numpy for row in rows)


def test_levels_hold_sixty_nodes_and_falling_siblings() -> None:
    levels = random_levels(3)
    assert sum(prob[0].size for prob, _ in levels) == 60
    for prob, parent in levels:
        assert np.all(np.diff(prob, axis=2) <= 0.0) and np.all(prob.sum(axis=2) <= 1.0)
        assert parent is None or parent.max() < 12


def test_policies_are_compared_on_each_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table in the terminal, and every number in the file."""
    easy = {"easy": synthetic.MIXES["easy"]}
    monkeypatch.setattr("evict_profile.bench.MIXES", easy)
    words = ["bench", "--only", "policies", "--prompts", "5", "--tokens", "4"]
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "best fixed depth and width" in done.stdout
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["schema"] == SCHEMA
    assert found["policies"][0]["scenario"]["workload"] == "easy"
