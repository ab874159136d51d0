"""What llama-server is predicted to take, and how it is compared with its clock."""

from pathlib import Path

import pytest

from benchmarks.llama_server import Setting, compared, settings
from evict_profile.advice.drafting import DraftCost
from evict_profile.records import replace
from evict_profile.table import CostTable, Staircase


def test_a_prediction_is_tokens_over_the_price_of_the_step(saved_table: Path) -> None:
    """Half were accepted; 60 tokens came in the time of 48 of plain decoding."""
    steps = tuple(100.0 + 20.0 * max(0, n - 1) for n in range(9))
    stairs = Staircase(1, 64, steps, steps, steps)
    table = replace(CostTable.load(saved_table), staircases=(stairs,))
    way = Setting("target", "draft", 2, 0.5)
    turn = {"tokens": 60, "accepted": 30, "plain_tokens": 48.0}
    [found] = compared({way: [turn] * 3}, DraftCost(table, 0.03))
    assert found["predicted"] == pytest.approx(2.0 * 100.0 / (140.0 + 2 * 30.0))
    for name in ("measured", "low", "high"):
        assert found[name] == pytest.approx(1.25)
    assert found["error"] == pytest.approx(1.0 / 1.25 - 1.0)


def test_there_are_more_than_ten_settings_beside_plain_decoding() -> None:
    """Each once, and named apart."""
    asked = settings("target", "draft")
    names = {setting.name for setting in asked}
    assert len(names) == len(asked) >= 12
