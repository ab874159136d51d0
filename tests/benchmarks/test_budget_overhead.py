"""Routing within a budget is timed beside a model's own routers."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks import budget_overhead
from benchmarks.budget_overhead import Forward, model_forward
from evict_profile.runtime.budget import MODES, RANKINGS


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is."""
    monkeypatch.setattr(budget_overhead.torch.cuda, "is_available", lambda: False)


def test_both_modes_are_timed_alone_and_in_place(tmp_path: Path) -> None:
    """Rows of each mode, ranking and budget; in place, one of own routers as well."""
    out = tmp_path / "overhead.json"
    words = ["--model", "tiny", "--tokens", "5", "--budget", "4", "--context", "8"]
    assert budget_overhead.main([*words, "--rounds", "2", "--out", str(out)]) == 0
    (measured,) = json.loads(out.read_text())["measured"]
    names = ("where", "mode", "ranking", "budget")
    found = [tuple(row.get(name) for name in names) for row in measured["rows"]]
    ways = [(mode, ranking, 4) for mode, ranking in product(MODES, RANKINGS)]
    assert found == [
        *(("alone, eager", *way) for way in ways),
        ("in place", "own", None, None),
        *(("in place", *way) for way in ways),
    ]
    assert measured["forward_us"]["median"] > 0


def test_a_forward_obeys_its_own_routers() -> None:
    """Timing another one beside them changes no output, and they are put back."""
    forward = model_forward("tiny", 2, 5, 8, torch.device("cpu"))
    own = [layer.router for layer in forward.layers]
    expected = forward.run()
    others = [lambda x, r=r: tuple(-t for t in r(x)) for r in own]
    for number in range(2):
        out = []
        told = Forward(forward.layers, lambda out=out: out.append(forward.run()))
        budget_overhead.both(told, own, others, number)
        assert torch.equal(out[0], expected)
    assert [layer.router for layer in forward.layers] == own
