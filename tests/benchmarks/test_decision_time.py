"""Decisions are timed on sound trees, beside a rival that decides the same."""

import json

import numpy as np
import pytest
import torch

from benchmarks import decision_time
from evict_profile.runtime import select_widths
from evict_profile.runtime.decision import COMPILED


@pytest.mark.parametrize("batch", [1, 4])
def test_the_rival_in_numpy_decides_the_same(batch):
    levels, drafts, chains, _ = decision_time.random_trees(batch)
    assert drafts.shape == (batch, 60)
    assert all(np.all(prob.sum(axis=2) <= 1.0) for prob, _ in levels)
    cost_us = 90.0 + 3.0 * np.arange(batch * 61 + 1.0) ** 0.7
    widths = select_widths(torch.from_numpy(drafts), cost_us)
    assert np.array_equal(widths, decision_time.plain_numpy(drafts, cost_us))
    survival = np.cumprod(chains, axis=1, dtype=float)
    np.testing.assert_allclose(survival, -np.sort(-drafts, axis=1), rtol=1e-5)


def test_sglangs_trees_are_closed_under_parents():
    drafted = decision_time.random_trees(3).drafted
    assert drafted.index.shape == (3, 60)
    assert (drafted.parent < torch.arange(60)).all()


@pytest.mark.parametrize(("most", "code"), [(0.0, int(COMPILED)), (1e9, 0)])
def test_a_ratio_above_its_limit_is_exit_code_1(tmp_path, monkeypatch, most, code):
    monkeypatch.setattr(decision_time, "MOST", {2: {"plan": most}})
    monkeypatch.setattr(decision_time, "CALLS", 1)
    out = tmp_path / "times.json"
    assert decision_time.main(["--out", str(out)]) == code
    found = json.loads(out.read_text())["us"]["2"]
    assert found["plain numpy"]["over_numpy"] == 1.0
    assert 0.0 < found["plan"]["low"] <= found["plan"]["value"]


@pytest.mark.parametrize(
    ("aim_us", "quiet_us", "verdict"),
    [(9.0, 20.0, "missed"), (10.0, 20.0, "met"), (9.0, 19.0, "not judged")],
)
def test_an_aim_is_judged_on_a_quiet_machine(aim_us, quiet_us, verdict):
    us = {"whole step": {"value": 10.0}, "plain numpy": {"value": 20.0}}
    assert decision_time.judged(us, aim_us, quiet_us).startswith(verdict)


def test_a_missed_aim_is_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.setattr(decision_time, "MOST", {2: {}})
    monkeypatch.setattr(decision_time, "AIMS_US", {2: (0.0, 1e9)})
    monkeypatch.setattr(decision_time, "CALLS", 1)
    out = tmp_path / "times.json"
    assert decision_time.main(["--out", str(out)]) == int(COMPILED)
    assert json.loads(out.read_text())["aims"] == {"2": "missed"}
