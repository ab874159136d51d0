"""Verdicts at composed prices, and what believing a start-up profile loses there."""

import json

import pytest

from benchmarks import composed_tables
from benchmarks.composed_tables import (
    Advice,
    advise,
    growth,
    name_of,
    on_real_text,
    shipped,
    show_losses,
)
from evict_profile.stats import Estimate
from evict_profile.table import CostTable


@pytest.fixture(scope="module")
def h200():
    [path] = [
        p for p in shipped("composed") if "tp1" in str(p) and "h200/qwen3-30b" in str(p)
    ]
    return CostTable.load(path)


def test_each_pair_has_its_newest_table(h200):
    composed, measured = shipped("composed"), shipped(".")
    assert len(composed) >= 12
    assert {CostTable.load(path).origin for path in composed} == {"composed"}
    assert len({path.parent for path in measured}) == len(measured)
    assert name_of(h200) == "qwen3-30b-a3b on NVIDIA H200, sglang"


def test_real_text_activates_fewer_beyond_the_first_token(h200):
    uniform, real = h200.activation.union, on_real_text(h200).union
    assert real[:2] == uniform[:2] == (0.0, 8.0)
    assert real[32] == pytest.approx(8.0 + 0.78 * (uniform[32] - 8.0))


def test_growth_is_told_by_each_union(h200):
    real, uniform, alike, expert = growth(h200)
    us = h200.step_cost_us(1, 512)
    expected = " ".join(f"{us[n] / us[1]:.2f}" for n in (8, 32, 64))
    assert uniform == expected
    assert real < uniform
    assert alike < real
    assert expert.endswith("%")


def test_believing_a_dummy_loses_on_hard_text(h200, capsys):
    found = advise(h200, "hard", batch=4, tokens=4)
    assert isinstance(found, Advice)
    assert found.none.value < 1.0
    assert found.alike.value < 1.0
    show_losses([found])
    assert f"{1.0 - found.none.value:.0%}" in capsys.readouterr().out


def test_what_is_done_is_kept_after_each_table(tmp_path, monkeypatch):
    estimate = Estimate(1.1, 1.0, 1.2)
    monkeypatch.setattr(
        composed_tables,
        "advise",
        lambda table, text, batch: Advice(
            name_of(table), text, batch, "adapt", True, "4 tokens", *[estimate] * 5
        ),
    )
    out = tmp_path / "verdicts.json"
    composed_tables.main(["verdicts", str(shipped("composed")[0]), "--out", str(out)])
    assert len(json.loads(out.read_text())) == 12
