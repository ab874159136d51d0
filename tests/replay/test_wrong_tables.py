"""Wrong tables are wrong as their names say, and right when nothing is changed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.replay import wrong_tables as wrong_tables_module
from evict_profile.replay.compare import Scenario, ScenarioReplay
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import RATE, RATIO, guided
from evict_profile.replay.wrong_tables import (
    STUDIED,
    Distort,
    borrowed,
    distorted,
    scaled,
    shipped_table,
    start_up_dummies,
    study_wrong_tables,
    tilted,
    with_activation,
    wrong_tables,
)
from evict_profile.runtime import CostTable

SAME: dict[str, Callable[[CostTable], Distort]] = {
    "scale": lambda table: scaled(1.0),
    "slope": lambda table: tilted(1.0),
    "curve": lambda table: with_activation(table, np.array(table.activation.union)),
    "table": borrowed,
}


@pytest.fixture
def replay(arrays: TraceArrays, table: CostTable) -> ScenarioReplay:
    return ScenarioReplay(arrays, table, Scenario("mixed", 0.0, 1), seeds=2)


@pytest.mark.parametrize("name", SAME)
def test_a_distortion_that_changes_nothing_gives_the_table(
    table: CostTable, name: str
) -> None:
    same = distorted(table, SAME[name](table))
    for batch, context in ((1, 64.0), (2, 100.0)):
        want = table.step_cost_us(batch, context)[batch:]
        got = same.step_cost_us(batch, context)[batch:]
        assert got == pytest.approx(want, rel=2e-3)


def test_scale_one_decides_as_the_right_table(replay: ScenarioReplay) -> None:
    same = guided(distorted(replay.table, scaled(1.0)), 4)
    right = guided(replay.table, 4)
    for name in (RATIO, RATE):
        runs = [replay.run(make[name](), seed=0) for make in (same, right)]
        assert runs[0].rows.tolist() == runs[1].rows.tolist()
        assert runs[0].tokens_per_s == runs[1].tokens_per_s


def test_the_ratio_needs_no_scale_where_nothing_else_costs(
    bare_table: CostTable, replay: ScenarioReplay
) -> None:
    """Twice all costs are twice every ratio."""
    right = guided(bare_table, 4)[RATIO]()
    wrong = guided(distorted(bare_table, scaled(2.0)), 4)[RATIO]()
    runs = [replay.run(policy, seed=0) for policy in (right, wrong)]
    assert runs[0].rows.tolist() == runs[1].rows.tolist()


def test_a_tilt_leaves_plain_decoding_alone(table: CostTable) -> None:
    steep = distorted(table, tilted(2.0)).step_cost_us(2, 64)
    right = table.step_cost_us(2, 64)
    assert steep[2] == right[2]
    assert steep[9] - steep[2] == pytest.approx(2.0 * (right[9] - right[2]))


def test_dummy_tokens_hide_what_experts_cost(table: CostTable) -> None:
    """Where every token activates the same experts, more tokens look cheap."""
    dummy = [
        distort for wrong, distort in wrong_tables(table, table).items()
        if "dummy" in wrong
    ]  # fmt: skip
    shown = distorted(table, dummy[0]).step_cost_us(1, 64)
    right = table.step_cost_us(1, 64)
    assert shown[1] == pytest.approx(right[1], rel=0.01)
    assert shown[8] - shown[1] < 0.5 * (right[8] - right[1])


def test_a_dummy_without_experts_prices_none(table: CostTable) -> None:
    dummy = start_up_dummies(table)["start-up dummy: no routed experts"]
    shown = distorted(table, dummy).step_cost_us(1, 64)
    tokens = np.array([1.0, 8.0])
    assert shown[[1, 8]] == pytest.approx(table.cost.price(tokens, 0.0, 64.0, 1.0))
    assert shown[1] < table.step_cost_us(1, 64)[1]


def test_another_tables_shape_starts_where_ours_does(table: CostTable) -> None:
    other = shipped_table()
    assert other
    lent = distorted(table, borrowed(other)).step_cost_us(2, 64)
    right = table.step_cost_us(2, 64)
    assert lent[2] == pytest.approx(right[2])
    assert lent[9] / lent[2] != pytest.approx(right[9] / right[2], rel=0.01)


@pytest.mark.parametrize("tree", ["intel-xeon-processor-2.50ghz-avx512f", "composed"])
def test_the_other_table_is_of_another_device(tree: str) -> None:
    for path in (data_root() / "cost_tables" / tree).rglob("*.json"):
        device = CostTable.load(path).key.gpu
        other = shipped_table(device)
        assert other and other.key.gpu != device


def test_without_a_table_of_another_device_its_row_is_left_out(
    table: CostTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrong_tables_module, "data_root", lambda: tmp_path)
    tried = wrong_tables(table, shipped_table(table.key.gpu))
    assert tried and not any("another device" in wrong for wrong in tried)


@pytest.mark.slow
def test_every_wrong_table_is_tried_on_every_policy(replay: ScenarioReplay) -> None:
    other = replace(replay.table)
    wrong = wrong_tables(replay.table, other)
    found = study_wrong_tables(replay, wrong).results
    assert [(each.wrong, each.policy) for each in found] == [
        (name, policy) for name in wrong for policy in STUDIED
    ]
    own = [each for each in found if "another device" in each.wrong]
    assert all(each.over_right.value == pytest.approx(1.0, abs=0.02) for each in own)
