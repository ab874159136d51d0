"""Traces and clocks of a world, as the runner answers them."""

import base64
from pathlib import Path

import numpy as np
import pytest

from runners.protocol import Refusal
from runners.tree_decoding import session as module
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.session import TraceSession, encode_routes, reply_seed
from tests.runners.tree_decoding.test_measuring import Text

OPTIONS = {
    "depth": 3,
    "topk": 3,
    "nodes": 10,
    "prompt_tokens": 12,
    "device": "cpu",
    "reference_us": 0.0,
}
ASK = {
    "workload": "prose",
    "prompt": 1,
    "prompts": 3,
    "seed": 0,
    "temperature": 0.7,
    "tokens": 6,
}


class Prompts(Text):
    """Prompts of that text."""

    def available(self, workload: str, tokens: int) -> int:
        """As many as fit."""
        return len(self.streams[workload]) // tokens

    def prompts(self, workload: str, count: int, tokens: int) -> list[list[int]]:
        """One after the other."""
        stream = self.streams[workload].tolist()
        return [stream[i * tokens : (i + 1) * tokens] for i in range(count)]


@pytest.fixture
def session(world: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> TraceSession:
    """A session over random weights."""
    monkeypatch.setattr(module, "open_world", lambda folder: world)
    monkeypatch.setattr(module, "HeldOut", Prompts)
    return TraceSession("nowhere", OPTIONS)


def test_a_step_for_every_token(session: TraceSession) -> None:
    steps = session.trace(ASK)["steps"]
    assert [step["position"] for step in steps] == list(range(6))
    assert [step["context"] for step in steps] == list(range(12, 18))
    assert all(len(step["draft_us"]) == 3 for step in steps)


def test_routes_come_a_node_at_a_time(session: TraceSession) -> None:
    step = session.trace(ASK)["steps"][0]
    raw = np.frombuffer(base64.b64decode(step["routes"]), dtype="<u1")
    routes = raw.reshape(len(step["parent"]) + 1, 3, 2)
    assert (routes[..., 0] != routes[..., 1]).all() and routes.max() < 8


def test_many_experts_need_wider_numbers(session: TraceSession) -> None:
    import torch

    routes = torch.full((2, 3, 1), 300)
    raw = np.frombuffer(base64.b64decode(encode_routes(routes, 512)), dtype="<u2")
    assert raw.tolist() == [300] * 6


def test_the_same_request_is_the_same_reply(session: TraceSession) -> None:
    def trees(seed: int) -> list[list[float]]:
        return [s["path_prob"] for s in session.trace({**ASK, "seed": seed})["steps"]]

    assert trees(0) == trees(0)
    assert trees(0) != trees(1)


def test_noise_is_another_for_every_reply() -> None:
    keys = [("code", 1, 0), ("prose", 1, 0), ("code", 2, 0), ("code", 1, 1)]
    assert len({reply_seed(*key) for key in keys}) == len(keys)


def test_clocks_hold_a_time_for_every_depth(session: TraceSession) -> None:
    clock = session.clock({"batch": 2, "steps": 3})
    assert len(clock["draft_us"]) == 4 and clock["draft_us"][0] == 0.0
    assert min(clock["draft_us"][1:]) > 0.0
    assert clock["fixed_us"] > 0.0 < clock["plain_fixed_us"]


def test_times_are_told_at_the_speed_of_the_reference_that_is_given(
    session: TraceSession,
) -> None:
    assert 0.0 < session.opening_us < 1e9
    slow = TraceSession("nowhere", {**OPTIONS, "reference_us": 1e9})
    verify_us = [s.trace(ASK)["steps"][3]["verify_us"] for s in (session, slow)]
    assert verify_us[1] > 100.0 * verify_us[0]


def test_no_world_is_refused() -> None:
    with pytest.raises(Refusal, match=r"holds no trained world .* in the checkout"):
        TraceSession("nowhere", OPTIONS)


def test_a_folder_without_a_world_names_what_it_lacks(tmp_path: Path) -> None:
    """A whole path is the same wherever the command is run."""
    (tmp_path / "world.json").write_text("{}")
    with pytest.raises(Refusal) as caught:
        TraceSession(str(tmp_path), OPTIONS)
    assert str(caught.value) == (
        f"{tmp_path}: holds no trained world (without weights.safetensors, "
        "tokenizer.json); train one with: python -m runners.train_small_world --out "
        f"{tmp_path}"
    )
