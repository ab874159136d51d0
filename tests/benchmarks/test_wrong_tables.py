"""What a start-up profile sees, and what deciding with it loses."""

import json

import numpy as np
import pytest

from benchmarks import wrong_tables
from evict_profile.table import CostTable


def test_dummy_tokens_hide_what_experts_cost(saved_table):
    table = CostTable.load(saved_table)
    shown = wrong_tables.start_up_profiles(table)
    right, alike = table.step_cost_us(1, 64), shown["identical tokens"]
    assert alike.step_cost_us(1, 64)[1] == pytest.approx(right[1], rel=0.01)
    assert alike.step_cost_us(1, 64)[8] - right[1] < 0.5 * (right[8] - right[1])
    none = shown["no routed experts"].step_cost_us(1, 64)[[1, 8]]
    tokens = np.array([1.0, 8.0])
    assert none == pytest.approx(table.cost.latency_us(tokens, 0.0, 64.0, 1.0))


@pytest.mark.parametrize(("least", "code"), [(-1.0, 0), (1.0, 1)])
def test_small_losses_are_a_miss(saved_table, tmp_path, monkeypatch, least, code):
    monkeypatch.setattr(wrong_tables, "TEXTS", ("hard",))
    monkeypatch.setattr(wrong_tables, "BATCHES", (1,))
    monkeypatch.setattr(wrong_tables, "SEEDS", 1)
    monkeypatch.setattr(wrong_tables, "LEAST", least)
    out = tmp_path / "losses.json"
    asked = ["--table", str(saved_table), "--out", str(out)]
    assert wrong_tables.main(asked) == code
    found = json.loads(out.read_text())
    assert [row["wrong"] for row in found] == ["identical tokens", "no routed experts"]
    assert all(row["low"] <= row["loss"] <= row["high"] for row in found)
