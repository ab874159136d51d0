"""What the runner answers about budgets: replies against what can be worked out beside
them, learning, and times of routing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from runners.protocol import Message
from runners.tree_decoding import budget_session as module
from runners.tree_decoding import session as session_module
from runners.tree_decoding.accept import greedy, teacher_forcing
from runners.tree_decoding.budget_session import (
    BudgetSession,
    MassRecorder,
    budgeted_reply,
)
from runners.tree_decoding.budgets import ExpertBudget
from runners.tree_decoding.corpus import HeldOut
from runners.tree_decoding.engine import Engine, EngineStep
from runners.tree_decoding.tree import TreeShape
from runners.tree_decoding.verifier import Verifier
from tests.runners.tree_decoding.decoding import CPU, NO_BUDGET, OPTIONS, VOCAB, Text

PROMPT, TOKENS, ROOM = 7, 14, 96
FEW = ExpertBudget((2, 3, 2))
ORACLE = ExpertBudget((3, 3, 3), ranking="oracle")
RNG = np.random.default_rng(0)
OPENING = RNG.integers(0, VOCAB, PROMPT).tolist()
TEXT = RNG.integers(0, VOCAB, TOKENS + 6).tolist()
"""What is given behind the prompt: one longer than a reply and a tree."""


@dataclass
class Recorded:
    """A reply, what the engine did meanwhile, and what is known without it.

    Attributes:
        done: the engine's steps.
        logits: behind each committed token, one a row.
        plain: the trained target's own, without a budget.
        next_tokens: what was committed.
    """

    steps: list[Message]
    reply: list[int]
    done: list[EngineStep]
    logits: torch.Tensor
    plain: torch.Tensor
    next_tokens: torch.Tensor

    def each(self, name):
        return [value for step in self.steps for value in step[name]]


Record = Callable[..., Recorded]


@pytest.fixture
def record(checkpoint, tree):
    @torch.no_grad()
    def recorded(budget=None, given=False):
        engine = Engine(checkpoint, 1, ROOM, tree, CPU, budget)
        engine.admit(OPENING, teacher_forcing(TEXT) if given else greedy, 0)
        done: list[EngineStep] = []
        step = engine.step
        engine.step = lambda policy: done.append(step(policy)) or done[-1]
        steps = budgeted_reply(
            engine, Verifier(checkpoint.target, 1, ROOM, CPU), TOKENS
        )
        reply = engine.requests[0].reply
        logits = [
            s.verified.logits[[0, *(node + 1 for node in s.paths[0])]] for s in done
        ]
        text = torch.tensor([*OPENING, *reply])
        plain = checkpoint.target(text[None, :-1]).logits[0, PROMPT:]
        return Recorded(
            steps, reply, done, torch.cat(logits), plain, text[PROMPT + 1 :]
        )

    return recorded


@pytest.mark.parametrize("given", [False, True])
def test_without_a_budget_nothing_is_off(record, given):
    """Neither in distribution nor in its best token nor in loss."""
    found = record(given=given)
    assert max(found.each("kl")) < 1e-8
    assert all(found.each("agrees"))
    assert found.each("loss") == pytest.approx(found.each("plain_loss"), abs=1e-4)


@pytest.mark.parametrize("budget", [None, FEW, ORACLE])
def test_what_is_given_is_what_is_committed(record, budget):
    found = record(budget, given=True)
    assert found.reply == TEXT[: len(found.reply)]
    assert len(found.reply) > TOKENS


def test_decoded_text_is_the_budgeted_model_s_own(record):
    """Its best token, each time; some steps commit more than one."""
    found = record(FEW)
    assert found.reply[1:] == found.logits.argmax(dim=1).tolist()
    assert max(step["committed"] for step in found.steps) > 1


@pytest.mark.parametrize("given", [False, True])
def test_steps_add_up(record, given):
    """Each begins where the one before it ended, until the reply is long enough."""
    found = record(FEW, given)
    position = 0
    for step in found.steps:
        assert step["position"] == position < TOKENS
        assert step["context"] == PROMPT + position
        assert 1 <= step["committed"] <= 5
        assert step["verified"] == 15
        lists = [step[name] for name in ("kl", "agrees", "loss", "plain_loss")]
        assert [len(values) for values in lists] == [step["committed"]] * 4
        position += step["committed"]
    assert position == len(found.reply) - 1 >= TOKENS


@pytest.mark.parametrize("given", [False, True])
def test_quality_is_of_the_plain_model_against_the_budgeted(record, given):
    """Divergence is sum of p log(p / q) over the vocabulary, and so never below 0, and
    felt here; losses are of the token that was committed."""
    found = record(FEW, given)
    p = found.plain.double().softmax(dim=1).numpy()
    q = found.logits.double().softmax(dim=1).numpy()
    expected = [sum(a * np.log(a / b)) for a, b in zip(p, q, strict=True)]
    assert found.each("kl") == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert min(found.each("kl")) > -1e-12
    assert np.mean(found.each("kl")) > 1e-4
    assert found.each("agrees") == (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
    for name, logits in (("loss", found.logits), ("plain_loss", found.plain)):
        losses = F.cross_entropy(logits, found.next_tokens, reduction="none")
        assert found.each(name) == pytest.approx(losses.tolist(), abs=1e-4)


@pytest.mark.parametrize("budget", [None, FEW, ORACLE])
def test_a_union_is_of_what_ran(record, budget):
    """Distinct experts of the budgeted forward, mean over layers."""
    found = record(budget)
    for message, step in zip(found.steps, found.done, strict=True):
        activated = [len(set(r.flatten().tolist())) for r in step.verified.routes]
        assert message["union"] == pytest.approx(np.mean(activated))
    if budget is not None:
        assert max(s["union"] for s in found.steps) <= np.mean(budget.per_layer)


REPLY = {
    **NO_BUDGET,
    "workload": "prose",
    "prompt": 1,
    "prompts": 4,
    "tokens": 6,
    "given": False,
}
LEARN = {
    **NO_BUDGET,
    "workloads": ["prose"],
    "prompts": 4,
    "learn_from": 1,
    "tokens": 6,
}


@pytest.fixture
def session(checkpoint, monkeypatch):
    monkeypatch.setattr(session_module, "open_checkpoint", lambda folder: checkpoint)
    monkeypatch.setattr(session_module, "HeldOut", Text)
    return BudgetSession("nowhere", OPTIONS)


def test_the_same_request_is_the_same_reply(session):
    """To the last bit, so that a recording can go on; of the tokens asked for."""
    ask = {**REPLY, "per_layer": [2, 3, 2]}
    steps = session.record(ask)["steps"]
    assert session.record(ask)["steps"] == steps
    assert session.record({**ask, "prompt": 2})["steps"] != steps
    assert (steps[0]["position"], steps[0]["context"]) == (0, 12)
    assert sum(step["committed"] for step in steps) >= 6


def test_the_first_token_is_the_same_under_every_budget(session):
    """Prompts have none, so settings are compared behind the same text."""
    none, few = (
        session.record({**REPLY, "per_layer": budget})["steps"][0]
        for budget in (None, [2, 3, 2])
    )
    assert (none["position"], none["context"]) == (few["position"], few["context"])
    assert none["kl"][0] == pytest.approx(0.0, abs=1e-8)
    assert few["kl"][0] > 0.0


def test_masses_are_of_each_layer(session):
    shares = torch.tensor(session.expert_mass(LEARN)["mass"])
    assert shares.shape == (3, 8)
    assert (shares > 0.0).all()
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))


def test_a_budgets_damage_is_on_given_text_behind_odd_prompts(session):
    """Mean over its tokens; one layer alone does another than all, no budget none."""
    ask = {**REPLY, "given": True}
    found = set()
    for per_layer in ((2, 8, 8), (8, 2, 8), (2, 2, 2)):
        damage = session.budget_kl({**LEARN, "per_layer": per_layer})
        steps = session.reply(ask, 1, ExpertBudget(per_layer))
        assert damage == {"kl": pytest.approx(fmean(k for s in steps for k in s["kl"]))}
        found.add(damage["kl"])
    assert len(found) == 3
    assert session.budget_kl(LEARN)["kl"] == pytest.approx(0.0, abs=1e-8)


class Windows(BudgetSession):
    """Decodes nothing, and notes which text it is asked for.

    Attributes:
        spans: first and last place of each prompt with its reply and the last tree.
    """

    def __init__(self, length, checkpoint):
        self.held_out = HeldOut.__new__(HeldOut)
        # Each token is its own place in the text.
        self.held_out.streams = {"prose": torch.arange(length)}
        self.checkpoint, self.device = checkpoint, CPU
        self.shape = checkpoint.target.shape
        self.prompt_tokens, self.tree = 128, TreeShape(5, 8, 60)
        self.spans = set[tuple[int, int]]()

    def engine(self, batch, tokens, budget=None):
        def admit(prompt, sampler, slot):
            last = prompt[-1] + tokens + self.tree.depth + 2
            assert len(prompt) == 128
            behind = np.arange(last - prompt[-1])
            assert sampler(None, behind) == [*range(prompt[-1] + 1, last + 1)]
            self.spans.add((prompt[0], last))

        return SimpleNamespace(admit=admit)


@pytest.mark.parametrize(
    ("length", "prompts"),
    [(114_992, 16), (114_992, 24), (61_987, 16), (61_987, 24), (8_000, 20)],
)
def test_no_text_is_both_learnt_from_and_recorded(
    checkpoint, monkeypatch, length, prompts
):
    """Neither in as many tokens as worlds/stdlib holds out of code and prose, nor
    where no further prompt would fit."""
    monkeypatch.setattr(module, "budgeted_reply", lambda *_: [{"kl": [0.0]}])
    windows = Windows(length, checkpoint)
    for prompt in range(prompts):
        ask = {"prompt": prompt, "prompts": prompts, "tokens": 64, "given": True}
        windows.record({**REPLY, **ask})
    assert len(windows.spans) == prompts
    windows.budget_kl({**LEARN, "prompts": prompts, "learn_from": 4, "tokens": 32})
    assert len(windows.spans) == prompts + 4
    assert all(a[1] < b[0] for a, b in pairwise(sorted(windows.spans)))


def test_a_recorder_of_mass_routes_as_the_model_does(checkpoint):
    """And each verification counts alike, however wide."""
    layers = Verifier(checkpoint.target, 1, 1, CPU).stack.moe
    recorder, expected = MassRecorder(3, 8, CPU), torch.zeros(8)
    for tokens in (3, 11):
        x = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(tokens))
        found = recorder()(1, layers[1], x)
        assert all(map(torch.equal, found, layers[1].router(x)))
        expected += layers[1].router.scores(x).mean(dim=0)
    torch.testing.assert_close(recorder.mass[1], expected)
    assert not recorder.mass[[0, 2]].any()


@pytest.mark.parametrize(
    "named",
    [
        {"per_layer": [2, 3, 2], "mode": "truncation"},
        {"per_layer": [2, 2, 2], "ranking": "top-k", "exponent": 0.5},
        {"per_layer": [2, 2, 2], "ranking": "kept", "kept": [[0, 1], [3, 4], [6, 7]]},
    ],
)
def test_routing_can_be_timed_under_every_rule(session, named):
    """A number of microseconds; how large, no test can say."""
    found = session.clock_routing({**NO_BUDGET, **named})
    assert list(found) == ["routing_us"]
    assert math.isfinite(found["routing_us"])
