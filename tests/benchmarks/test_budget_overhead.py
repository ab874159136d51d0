"""Routing within a budget is timed beside a model's own routers."""

import json
from itertools import product

from benchmarks import budget_overhead
from evict_profile.runtime.budget import MODES, RANKINGS


def test_every_way_is_timed_beside_the_own_routers(tmp_path, monkeypatch):
    """Each mode, ranking and budget, and the own routers beside themselves."""
    monkeypatch.setattr(budget_overhead.torch.cuda, "is_available", lambda: False)
    out = tmp_path / "overhead.json"
    words = ["--model", "tiny", "--tokens", "5", "--budget", "4", "--context", "8"]
    assert budget_overhead.main([*words, "--rounds", "2", "--out", str(out)]) == 0
    (measured,) = json.loads(out.read_text())["measured"]
    names = ("kind", "mode", "ranking", "budget")
    found = [tuple(row.get(name) for name in names) for row in measured["rows"]]
    ways = [(mode, ranking, 4) for mode, ranking in product(MODES, RANKINGS)]
    assert found == [("eager", "own", None, None), *(("eager", *way) for way in ways)]
    assert measured["forward_us"]["median"] > 0
