"""Wrong tables are wrong as their names say, and right when nothing is changed."""

import numpy as np
import pytest

from evict_profile.replay import wrong_tables as wrong_tables_module
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.policies import RATE
from evict_profile.replay.wrong_tables import (
    reshaped,
    shipped_table,
    start_up_dummies,
    study_wrong_tables,
    wrong_tables,
)
from evict_profile.runtime import CostTable
from tests.shipped import tracked


@pytest.fixture(autouse=True)
def shipped_alone(shipped_root, monkeypatch):
    monkeypatch.setattr(wrong_tables_module, "data_root", lambda: shipped_root)


@pytest.fixture
def replay(arrays, table):
    return ScenarioReplay(arrays, table, Scenario("mixed", 0.0, 1), seeds=2)


def test_dummy_tokens_hide_what_experts_cost(table):
    """Where every token activates the same experts, more tokens look cheap."""
    dummy = next(iter(start_up_dummies(table).values()))
    shown, right = dummy.step_cost_us(1, 64), table.step_cost_us(1, 64)
    assert shown[1] == pytest.approx(right[1], rel=0.01)
    assert shown[8] - shown[1] < 0.5 * (right[8] - right[1])


def test_a_dummy_without_experts_costs_none(table):
    shown = start_up_dummies(table)["start-up dummy: no routed experts"]
    tokens = np.array([1.0, 8.0])
    right = table.cost.latency_us(tokens, 0.0, 64.0, 1.0)
    assert shown.step_cost_us(1, 64)[[1, 8]] == pytest.approx(right)
    assert right[0] < table.step_cost_us(1, 64)[1]


def test_another_tables_shape_starts_where_ours_does(table):
    other = shipped_table(table.key.gpu)
    assert other
    lent = reshaped(table, other, 2, 64.0).step_cost_us(2, 64)
    right = table.step_cost_us(2, 64)
    assert lent[2] == pytest.approx(right[2])
    assert lent[9] / lent[2] != pytest.approx(right[9] / right[2], rel=0.01)


def test_the_other_table_is_of_another_device():
    for path in tracked("cost_tables/*.json"):
        device = CostTable.load(path).key.gpu
        other = shipped_table(device)
        assert other and other.key.gpu != device


def test_without_a_table_of_another_device_its_row_is_left_out(
    replay, tmp_path, monkeypatch
):
    monkeypatch.setattr(wrong_tables_module, "data_root", lambda: tmp_path)
    tried = wrong_tables(replay, shipped_table("any"))
    assert len(tried) == 2 and all("dummy" in wrong for wrong in tried)


@pytest.mark.slow
def test_every_wrong_table_is_tried(replay):
    wrong = wrong_tables(replay, replay.table)
    found = study_wrong_tables(replay, wrong, RATE).over_right
    assert list(found) == list(wrong)
    assert list(found.values())[-1].value == pytest.approx(1.0, abs=0.02)
