"""Routing within a budget is timed beside a model's own routers."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import budget_overhead


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is."""
    monkeypatch.setattr(budget_overhead.torch.cuda, "is_available", lambda: False)


def test_both_modes_are_timed_alone_and_in_place(tmp_path: Path) -> None:
    """A row for each mode and budget, and one that compares routers with themselves."""
    out = tmp_path / "overhead.json"
    words = ["--model", "tiny", "--tokens", "5", "--budget", "4", "--context", "8"]
    assert budget_overhead.main([*words, "--rounds", "2", "--out", str(out)]) == 0
    (measured,) = json.loads(out.read_text())["measured"]
    found = [(r["where"], r.get("mode"), r.get("budget")) for r in measured["rows"]]
    modes = ("substitution", "truncation")
    expected = [("alone, eager", mode, 4) for mode in modes] + [
        ("in place", None, None),
        *(("in place", mode, 4) for mode in modes),
    ]
    assert found == expected
    assert measured["forward_us"]["median"] > 0


def test_a_forward_obeys_its_own_routers() -> None:
    """Timing another one beside them changes no output, and they are put back."""
    forward = budget_overhead.model_forward("tiny", 2, 5, 8, torch.device("cpu"))
    own = [layer.router for layer in forward.layers]
    expected = forward.run()
    others = [lambda x, r=r: tuple(-t for t in r(x)) for r in own]
    for number in range(2):
        out = []
        told = budget_overhead.Forward(
            forward.layers, lambda out=out: out.append(forward.run())
        )
        budget_overhead.both(told, own, others, number)
        assert torch.equal(out[0], expected)
    assert [layer.router for layer in forward.layers] == own
