"""Replies under budgets, against what can be worked out beside them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from examples.small_world.engine.accept import greedy, teacher_forcing
from examples.small_world.engine.budgeted import (
    BudgetedReply,
    budgeted_reply,
    budgeted_steps,
)
from examples.small_world.engine.budgets import MASS, NONE, ExpertBudget
from examples.small_world.engine.engine import Engine
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.verifier import Verifier
from tests.examples.small_world.engine.decoding import PROMPT_TOKENS, TREE, VOCAB

PROMPT, TOKENS, ROOM = 7, 14, 96
RNG = np.random.default_rng(0)
OPENING = RNG.integers(0, VOCAB, PROMPT).tolist()
TEXT = RNG.integers(0, VOCAB, TOKENS + 6).tolist()
"""What is given behind the prompt: one longer than a reply and a tree."""


@pytest.fixture
def record(checkpoint, target, tree):
    """A reply, what the engine did meanwhile, the logits behind each committed token,
    and those of the trained target without a budget."""

    @torch.no_grad()
    def recorded(few=True, given=False):
        budget = ExpertBudget(2) if few else None
        engine, done = Engine(checkpoint, 1, ROOM, tree, budget), []
        engine.admit(OPENING, teacher_forcing(TEXT) if given else greedy, 0)
        step = engine.step
        engine.step = lambda policy: done.append(step(policy)) or done[-1]
        steps = budgeted_reply(engine, Verifier(checkpoint, 1, ROOM), TOKENS)
        reply = engine.requests[0].reply
        logits = [
            s.verified.logits[[0, *(node + 1 for node in s.paths[0])]] for s in done
        ]
        text = torch.tensor([[*OPENING, *reply][:-1]])
        plain = target(text).logits[0, PROMPT:]
        return SimpleNamespace(
            steps=steps, reply=reply, done=done, logits=logits, plain=plain
        )

    return recorded


@pytest.mark.parametrize("given", [False, True])
def test_without_a_budget_nothing_is_off(record, given):
    for step in record(few=False, given=given).steps:
        assert step["kl"] < 1e-7
        assert step["agrees"] == step["committed"]
        assert step["routing_us"] == 0.0


@pytest.mark.parametrize("few", [False, True])
def test_what_is_given_is_what_is_committed(record, few):
    found = record(few, given=True)
    assert found.reply == TEXT[: len(found.reply)]
    assert len(found.reply) > TOKENS


def test_decoded_text_is_the_budgeted_models_own(record):
    """Its best token, each time; some steps commit more than one."""
    found = record()
    assert found.reply[1:] == torch.cat(found.logits).argmax(dim=1).tolist()
    assert max(step["committed"] for step in found.steps) > 1


@pytest.mark.parametrize("given", [False, True])
def test_steps_add_up(record, given):
    """Each begins where the one before it ended, until the reply is long enough."""
    found = record(given=given)
    position = 0
    for step, done in zip(found.steps, found.done, strict=True):
        assert step["position"] == position < TOKENS
        assert step["context"] == PROMPT + position
        assert 1 <= step["committed"] <= 5
        assert step["verified"] == 15
        activated = [len(set(r.flatten().tolist())) for r in done.verified.routes]
        assert step["union"] == pytest.approx(np.mean(activated))
        assert step["union"] <= 2.0
        assert step["routing_us"] != 0.0
        position += step["committed"]
    assert position == len(found.reply) - 1 >= TOKENS


@pytest.mark.parametrize("given", [False, True])
def test_quality_is_of_the_plain_model_against_the_budgeted(record, given):
    """Divergence is sum of p log(p / q) over the vocabulary; the excess loss is
    log(p / q) of the committed tokens."""
    found, total = record(given=given), 0.0
    for step, logits in zip(found.steps, found.logits, strict=True):
        at = step["position"]
        p, q = (
            x.double().softmax(dim=1).numpy()
            for x in (found.plain[at : at + len(logits)], logits)
        )
        assert step["kl"] == pytest.approx(
            (p * np.log(p / q)).sum(), rel=1e-3, abs=1e-6
        )
        assert step["agrees"] == (p.argmax(axis=1) == q.argmax(axis=1)).sum()
        own = range(len(logits)), found.reply[1 + at : 1 + at + len(logits)]
        lost = np.log(p[own] / q[own]).sum()
        assert step["excess_loss"] == pytest.approx(lost, rel=1e-3, abs=1e-5)
        total += step["kl"]
    assert total > 1e-3


@pytest.fixture
def session(opened):
    return TraceSession(Path("nowhere"), TREE, PROMPT_TOKENS)


def reply(session, prompt=1, rule=MASS, budget=2):
    asked = BudgetedReply(rule, budget, "prose", prompt, given=False)
    steps = budgeted_steps(session, asked, prompts=4, tokens=6)
    return [{name: s[name] for name in s if name != "routing_us"} for s in steps]


def test_the_same_request_is_the_same_reply(session):
    """To the last bit, so that a recording can go on; of the tokens asked for."""
    steps = reply(session)
    assert reply(session) == steps
    assert reply(session, prompt=2) != steps
    assert (steps[0]["position"], steps[0]["context"]) == (0, 12)
    assert sum(step["committed"] for step in steps) >= 6


def test_settings_begin_behind_the_same_text(session):
    none, few = reply(session, rule=NONE, budget=8)[0], reply(session)[0]
    assert (none["position"], none["context"]) == (few["position"], few["context"])
    assert none["kl"] == pytest.approx(0.0, abs=1e-7)
    assert few["kl"] > 0.0
