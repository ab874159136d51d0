"""The cost of a decision is timed with the plug-in's own code."""

import json

from benchmarks import sglang_decision


def test_decisions_are_timed_on_a_cpu(informed_table, tmp_path, monkeypatch):
    monkeypatch.setattr(sglang_decision, "ROUNDS", 3)
    monkeypatch.setattr(sglang_decision.torch.cuda, "is_available", lambda: False)
    table, out = tmp_path / "table.json", tmp_path / "decision.json"
    informed_table.save(table)
    words = ["--table", str(table), "--batch", "2", "--steps", "3", "--topk", "4"]
    words += ["--draft-tokens", "8", "--context", "64", "--out", str(out)]
    assert sglang_decision.main(words) == 0
    costs = json.loads(out.read_text())["us"]["batch 2"]
    assert set(costs) == {"copy", "choice", "copy_and_choice", "cut"}
    assert costs["copy_and_choice"] > costs["copy"]
