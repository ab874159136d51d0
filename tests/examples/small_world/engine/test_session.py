"""What the runner answers: traces, clocks, cells of a sweep, and refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.traces import Reply
from examples.small_world.engine.clocks import StepTimes
from examples.small_world.engine.limits import check_fits
from examples.small_world.engine.measuring import CellForward, Session
from examples.small_world.engine.session import TraceSession, reply_seed
from runners.clock import Timestamp
from runners.protocol import Refusal
from tests.examples.small_world.engine.decoding import PROMPT_TOKENS, TREE

REPLY = Reply("prose", 1, 0, 0.7)
MODEL = {
    "dtype": "float32",
    "vocab_size": 12,
    "hidden_size": 32,
    "num_layers": 3,
    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
    "moe": {"num_experts": 8, "top_k": 2, "expert_width": 16},
}
SWEEP = {
    "device": "cpu",
    "layers": "auto",
    "engine": {"world": "nowhere"},
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


def open_session(reference_us=0.0):
    return TraceSession(Path("nowhere"), TREE, PROMPT_TOKENS, reference_us)


@pytest.fixture
def session(opened):
    return open_session()


@pytest.fixture
def sweep(opened):
    return Session(MODEL, SWEEP)


def test_a_trace_has_a_step_for_every_token(session):
    steps = session.trace(REPLY, 3, 6)
    assert [step["position"] for step in steps] == list(range(6))
    assert [step["context"] for step in steps] == list(range(12, 18))
    for step in steps:
        assert len(step["draft_us"]) == 3
        raw = np.frombuffer(step["routes"], dtype="<u1")
        routes = raw.reshape(len(step["parent"]) + 1, 3, 2)
        assert (routes[..., 0] != routes[..., 1]).all() and routes.max() < 8


def test_the_same_reply_is_the_same_text(session):
    def trees(seed):
        steps = session.trace(Reply("prose", 1, seed, 0.7), 3, 6)
        return [step["path_prob"] for step in steps]

    assert trees(0) == trees(0)
    assert trees(0) != trees(1)


def test_noise_is_another_for_every_reply():
    keys = [("code", 1, 0), ("prose", 1, 0), ("code", 2, 0), ("code", 1, 1)]
    assert len({reply_seed(*key) for key in keys}) == len(keys)


def test_clocks_hold_a_time_for_every_depth(session):
    clock = session.clock(2, 3)
    assert len(clock.draft_us) == 4 and clock.draft_us[0] == 0.0
    assert np.isfinite(clock.draft_us).all()
    assert clock.fixed_us > 0.0 < clock.plain_fixed_us


def test_times_are_told_at_the_speed_of_the_reference_that_is_given(session):
    assert 0.0 < session.opening_us < 1e9
    slow = open_session(1e9)
    verify_us = [s.trace(REPLY, 3, 6)[3]["verify_us"] for s in (session, slow)]
    assert verify_us[1] > 100.0 * verify_us[0]


def test_parts_of_a_step_add_up():
    level, verify, step = (Timestamp(us, 2 * us) for us in (2.0, 5.0, 9.0))
    assert StepTimes((level,), verify, step).fixed == Timestamp(2.0, 4.0)


def test_the_union_that_was_asked_for_runs(sweep):
    answer = sweep.measure({"cell": CELL, "seeds": [1, 2], "layers": None})
    for sample in answer["samples"]:
        assert (sample["union_low"], sample["union_high"]) == (5, 5)
        assert sample["clock_us"] > 0.0 < sample["reference_us"]


def test_seeds_draw_other_experts_and_trees(sweep):
    first, again, other = (CellForward(sweep, CELL, 3, seed) for seed in (1, 1, 2))
    assert first.routes is not None
    assert torch.equal(first.routes, again.routes)
    assert not torch.equal(first.routes, other.routes)
    trees = [work.parents.tolist() for work in (first, other)]
    assert trees[0] != trees[1]


def test_natural_routing_is_the_router_s(sweep):
    cell = {**CELL, "split": "natural", "union": 0}
    (sample,) = sweep.measure({"cell": cell, "seeds": [0]})["samples"]
    assert 2.0 <= sample["observed_union"] <= 8.0


def natural_routes(sweep, after):
    """Experts of real text behind 60 tokens, once these cells were measured."""
    natural = {**CELL, "split": "natural", "union": 0, "context": 60}
    for cell in (natural, *after):
        sweep.measure({"cell": cell, "seeds": range(4), "layers": None})
    forward = CellForward(sweep, natural, 3, 0)
    with torch.inference_mode():
        forward.run()
    return torch.stack(forward.ran)


def test_natural_routes_are_the_same_in_any_order_of_cells(opened):
    forced = [{**CELL, "context": at, "width": 8} for at in range(8, 60, 8)]
    alone = natural_routes(Session(MODEL, SWEEP), [])
    assert torch.equal(alone, natural_routes(Session(MODEL, SWEEP), forced))


def test_neither_a_cell_nor_the_reference_overwrites_the_text(sweep):
    text = sweep.verifier.cache.rows[:, :, :, : 2 * sweep.room]
    before = text.clone()
    sweep.measure({"cell": CELL, "seeds": [0], "layers": None})
    assert torch.equal(text, before)


def test_fewer_layers_can_be_timed(sweep):
    forward = CellForward(sweep, CELL, 2, 0)
    with torch.inference_mode():
        forward.run()
    assert len(forward.ran) == 2


def test_what_is_not_moe_holds_no_experts(sweep):
    cell = {**CELL, "part": "non_moe", "union": 0, "split": "natural"}
    (sample,) = sweep.measure({"cell": cell, "seeds": [0]})["samples"]
    assert sample["observed_union"] != sample["observed_union"]


def test_an_impossible_union_is_refused(sweep):
    cell = {**CELL, "width": 1, "batch": 1, "union": 5}
    with pytest.raises(Refusal, match="cannot activate 5"):
        sweep.measure({"cell": cell, "seeds": [0]})


def test_another_model_is_refused(opened):
    other: dict[str, Any] = {**MODEL, "num_layers": 4}
    with pytest.raises(Refusal, match=r"layers: 4 .* 3 in the world.*model\.yaml"):
        Session(other, SWEEP)
    with pytest.raises(Refusal, match=r"dtype: bfloat16 .* float32 in the world"):
        Session({**MODEL, "dtype": "bfloat16"}, SWEEP)


def test_no_checkpoint_is_refused():
    with pytest.raises(ConfigError, match=r"holds no trained .* in the checkout"):
        open_session()


def test_a_folder_without_a_checkpoint_names_what_it_lacks(tmp_path):
    """A whole path is the same wherever the command is run."""
    (tmp_path / "world.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        Session(MODEL, {**SWEEP, "engine": {"world": str(tmp_path)}})
    assert str(caught.value) == (
        f"{tmp_path}: holds no trained world (without weights.safetensors, "
        "tokenizer.json); train one with: python -m examples.small_world train "
        f"--out {tmp_path}"
    )


def check(checkpoint, tokens=6, **tree):
    check_fits(checkpoint, replace(TREE, **tree), tokens)


def test_what_fits_is_served(checkpoint):
    """As many children as there are tokens, and replies as long as may be."""
    with pytest.raises(ConfigError, match="--topk 13"):
        check(checkpoint, tokens=1024, topk=13)
    check(checkpoint, tokens=1024, topk=12)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tokens": 1025}, "--tokens 1025: .* replies of 1024 at most"),
        ({"topk": 13}, "--topk 13: .* knows 12 tokens; give 12 at most"),
    ],
)
def test_what_cannot_be_served_is_refused(checkpoint, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check(checkpoint, **options)
