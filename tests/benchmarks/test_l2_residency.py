"""A cold cache is told from a warm one, on a runner whose cache is made up."""

import json
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import common
from benchmarks.l2_residency import LEFT_BY, main

SMALL = 10
"""Unions up to this many experts live in the cache, and are read at half the time."""


class FakeSession:
    """An open runner with a cache."""

    asked: list[tuple[str, int]]

    def __init__(self, reference_us, spec):
        self.spec, self.asked = spec, []
        self.reference_us = reference_us
        self.facts = {"device": "paper", "graph_mode": "none"}
        self.opened = {"bytes_per_expert": 1000, "cache_bytes": 1000 * SMALL}
        self.runner = SimpleNamespace(ask=self.ask)
        self.draw = random.Random(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing is open."""

    def ask(self, request):
        """One sample; a machine twice as slow is so for work and reference."""
        union, before = request["cell"]["union"], request["before"]
        assert (request["do"], request["layers"]) == ("measure", 1)
        self.asked.append((before, union))
        warm = before == "self" and union <= SMALL
        slow = 1.0 if math.isnan(self.reference_us) else self.draw.choice((1.0, 2.0))
        clock_us = slow * union * (5.0 if warm else 10.0)
        sample = {"clock_us": clock_us, "reference_us": slow * self.reference_us}
        return {"samples": [sample]}


Measured = Callable[[float], tuple[dict[str, Any], FakeSession]]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What the script writes of a runner whose reference is given, and that runner."""

    def run(reference_us):
        opened: list[FakeSession] = []

        def session(spec, *_):
            opened.append(FakeSession(reference_us, spec))
            return opened[0]

        monkeypatch.setattr(common, "OpenRunner", session)
        out = tmp_path / "l2.json"
        assert main(["--model", "tiny", "--rounds", "6", "--out", str(out)]) == 0
        return json.loads(out.read_text()), opened[0]

    return run


@pytest.mark.parametrize("reference_us", [math.nan, 30.0])
def test_unions_that_fit_are_cheaper_behind_themselves(measured, reference_us):
    """Twice as dear from a cold cache; as dear where the cache is too small."""
    found, _ = measured(reference_us)
    assert found["cache_union"] == SMALL
    assert [row["union"] for row in found["unions"]] == [4, 8, 16, 32]
    for row in found["unions"]:
        ratio = 2.0 if row["union"] <= SMALL else 1.0
        for name in ("swept_over_self", "read_over_self"):
            assert row[name] == {"value": ratio, "low": ratio, "high": ratio}


def test_each_round_has_every_union_behind_all(measured):
    """In another order each time, on one layer."""
    _, session = measured(math.nan)
    assert session.spec.layers == 1
    size = 4 * len(LEFT_BY)
    rounds = [session.asked[i : i + size] for i in range(0, len(session.asked), size)]
    assert len(rounds) == 6
    assert all(len(set(visits)) == size for visits in rounds)
    assert len(set(map(tuple, rounds))) > 1


def test_a_runner_without_a_say_on_the_cache_is_refused(tmp_path, capsys):
    """All of its samples would be alike."""
    words = ["--sweep", "roofline", "--out", str(tmp_path / "l2.json")]
    assert main(words) == 2
    assert "give a sweep of the runner torch_moe" in capsys.readouterr().err
