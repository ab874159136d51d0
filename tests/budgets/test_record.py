"""Recording budgets: every setting of every prompt, decoded and given."""

from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from evict_profile.budgets.record import COLUMNS, RULES, SCHEMA, BudgetPlan
from evict_profile.errors import ConfigError
from evict_profile.traces import TraceInfo
from evict_profile.traces.load import parts_of
from evict_profile.traces.recording import record
from tests.traces import fake_runner

ROOT = Path(__file__).parents[2]
PLAN = BudgetPlan(prompts=2, tokens=4, depth=2, topk=3, nodes=12, budgets=(6, 8))
ABOUT = TraceInfo("small", experts=16, top_k=2)


def test_every_setting_is_recorded_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_JOURNAL", str(tmp_path / "journal"))
    out, quiet = tmp_path / "budgets", Console(quiet=True)
    for _ in range(2):
        record(PLAN, ROOT, out, quiet, runner=str(fake_runner.PATH))
    asked = (tmp_path / "journal").read_text().splitlines()
    assert asked[0] == "clock 1"
    settings = ["16 mass 0.0", "6 mass 0.0", "8 mass 0.0", "6 top-k 0.5", "8 top-k 0.5"]
    assert asked[1:] == [
        f"{workload} {prompt} {kind} {setting}"
        for prompt in (0, 1)
        for setting in settings
        for workload in ("code", "prose")
        for kind in ("given", "decoded")[::-1]
    ]
    parts = parts_of(out, SCHEMA)
    steps = pa.concat_tables([part.table for part in parts])
    assert steps.schema.equals(COLUMNS)
    assert set(steps.column("rule").to_pylist()) == set(RULES)
    assert len(steps) == 3 * len(asked[1:])


def test_budgets_and_prompts_that_there_are_not_are_refused():
    for budget in (1, 16):
        plan = BudgetPlan(budgets=(budget,))
        with pytest.raises(ConfigError, match=rf"--budget {budget}: .* give 2 to 15"):
            plan.within({"code": 99}, ABOUT)
    # A prompt needs its given text as well: 30 prompts of 128 tokens hold 19 of both.
    with pytest.raises(ConfigError, match=r"--prompts 20: workload code .* has 19"):
        BudgetPlan(budgets=(8,), prompts=20).within({"code": 30}, ABOUT)
