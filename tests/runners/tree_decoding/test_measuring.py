"""Cells of a sweep through the engine's own verification."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runners.protocol import Refusal
from runners.tree_decoding import measuring
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.measuring import MeasureSession, Work

MODEL = {
    "vocab_size": 12,
    "hidden_size": 32,
    "num_layers": 3,
    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
    "moe": {"num_experts": 8, "top_k": 2, "expert_width": 16},
}
OPTIONS = {
    "device": "cpu",
    "layers": "auto",
    "world": "nowhere",
    "max_width": 8,
    "max_context": 64,
    "max_batch": 2,
}
CELL = {
    "part": "layers",
    "width": 4,
    "union": 5,
    "context": 16,
    "batch": 2,
    "split": "balanced",
}


class Text:
    """Held-out text of random tokens."""

    def __init__(self, world: Checkpoint) -> None:
        generator = torch.Generator().manual_seed(0)
        self.streams = {"prose": torch.randint(12, (500,), generator=generator)}


@pytest.fixture
def session(world: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> MeasureSession:
    """A session over random weights."""
    monkeypatch.setattr(measuring, "open_world", lambda folder: world)
    monkeypatch.setattr(measuring, "HeldOut", Text)
    return MeasureSession(MODEL, OPTIONS)


def test_the_union_that_was_asked_for_runs(session: MeasureSession) -> None:
    answer = session.measure({"cell": CELL, "seeds": [1, 2], "layers": None})
    for sample in answer["samples"]:
        assert (sample["union_low"], sample["union_high"]) == (5, 5)
        assert sample["clock_us"] > 0.0 < sample["reference_us"]


def test_seeds_draw_other_experts_and_trees(session: MeasureSession) -> None:
    session.fill(2, 16)
    first, again, other = (Work(session, CELL, 3, seed) for seed in (1, 1, 2))
    assert torch.equal(first.routes, again.routes)
    assert not torch.equal(first.routes, other.routes)
    trees = [tuple(map(tuple, work.parents)) for work in (first, other)]
    assert trees[0] != trees[1]


def test_natural_routing_is_the_router_s(session: MeasureSession) -> None:
    cell = {**CELL, "split": "natural", "union": 0}
    (sample,) = session.measure({"cell": cell, "seeds": [0]})["samples"]
    assert 2.0 <= sample["observed_union"] <= 8.0


def test_fewer_layers_can_be_timed(session: MeasureSession) -> None:
    session.fill(2, 16)
    assert len(Work(session, CELL, 2, 0).routes) == 2


def test_the_ends_hold_no_experts(session: MeasureSession) -> None:
    cell = {**CELL, "part": "non_moe", "union": 0, "split": "natural"}
    (sample,) = session.measure({"cell": cell, "seeds": [0]})["samples"]
    assert sample["observed_union"] != sample["observed_union"]


def test_an_impossible_union_is_refused(session: MeasureSession) -> None:
    cell = {**CELL, "width": 1, "batch": 1, "union": 5}
    with pytest.raises(Refusal, match="cannot activate 5"):
        session.measure({"cell": cell, "seeds": [0]})


def test_another_model_is_refused(
    world: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "open_world", lambda folder: world)
    other: dict[str, Any] = {**MODEL, "num_layers": 4}
    with pytest.raises(Refusal, match=r"layers: 4 .* 3 in the world.*model\.yaml"):
        MeasureSession(other, OPTIONS)


def test_no_world_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"train one with: .*train_small_world"):
        MeasureSession(MODEL, {**OPTIONS, "world": str(tmp_path)})
