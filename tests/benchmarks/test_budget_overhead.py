"""Routing within a budget is timed beside a model's own routers."""

import json
import random
from itertools import product
from pathlib import Path

import pytest
import torch

from benchmarks import budget_overhead
from benchmarks.budget_overhead import Forward, beside_own, open_forward
from evict_profile.runtime.budget import MODES, RANKINGS


def test_every_way_is_timed_beside_the_own_routers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU: in the place of each mode, ranking and budget, and of none."""
    monkeypatch.setattr(budget_overhead.torch.cuda, "is_available", lambda: False)
    out = tmp_path / "overhead.json"
    words = ["--model", "tiny", "--tokens", "5", "--budget", "4", "--context", "8"]
    assert budget_overhead.main([*words, "--rounds", "2", "--out", str(out)]) == 0
    (measured,) = json.loads(out.read_text())["measured"]
    names = ("where", "mode", "ranking", "budget")
    found = [tuple(row.get(name) for name in names) for row in measured["rows"]]
    ways = [(mode, ranking, 4) for mode, ranking in product(MODES, RANKINGS)]
    own = ("in place", "own", None, None)
    assert found == [own, *(("in place", *way) for way in ways)]
    assert measured["forward_us"]["median"] > 0


def test_a_forward_obeys_its_own_routers() -> None:
    """Timing another one beside them changes no output, and they are put back."""
    forward = open_forward("tiny", 2, 5, 8, torch.device("cpu"))
    own, expected, rng = forward.routers, forward.run(), random.Random(0)
    others = [lambda x, r=r: tuple(-t for t in r(x)) for r in own]
    for _ in range(4):
        out = []
        watched = Forward(forward.layers, lambda out=out: out.append(forward.run()))
        beside_own(watched, others, rng)
        assert torch.equal(out[0], expected)
    assert forward.routers == own
