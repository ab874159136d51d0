"""What is recorded of a budgeted reply, against what can be worked out beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from runners.protocol import Message
from runners.tree_decoding.accept import sampling
from runners.tree_decoding.budget_session import Given, Plain, budgeted_reply
from runners.tree_decoding.budgets import Budget
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.tree import TreeShape
from runners.tree_decoding.verifier import Verifier
from tests.runners.tree_decoding.decoding import CPU

PROMPT, TOKENS, ROOM, VOCAB = 7, 14, 96, 12
FEW = Budget((2, 3, 2))
RNG = np.random.default_rng(0)
OPENING = RNG.integers(0, VOCAB, PROMPT).tolist()
TEXT = RNG.integers(0, VOCAB, TOKENS + 6).tolist()
"""What is given behind the prompt: one longer than a reply and a tree."""


@dataclass
class Recorded:
    """A reply, and what the engine did meanwhile.

    Attributes:
        routes: of each step, [layers, T, k].
        logits: behind each committed token, one a row.
    """

    steps: list[Message]
    reply: list[int]
    routes: list[torch.Tensor]
    logits: torch.Tensor

    def each(self, name: str) -> list[Any]:
        """A value of each token."""
        return [value for step in self.steps for value in step[name]]


Record = Callable[..., Recorded]


@pytest.fixture
def record(world: Checkpoint, tree: TreeShape) -> Record:
    """Records a reply under a budget or none, decoded or given."""

    def recorded(budget: Budget | None = None, given: bool = False) -> Recorded:
        engine = Engine(world, 1, ROOM, tree, CPU, budget)
        greedy = sampling(0.0, 0, 0, VOCAB, CPU)
        engine.admit(OPENING, Given(TEXT) if given else greedy, 0)
        routes, logits = [], []
        verify, commit = engine.verify, engine.commit

        def watched_verify(trees: Any) -> Any:
            found = verify(trees)
            routes.append(found[1].clone())
            return found

        def watched_commit(trees: Any, paths: Any, wanted: Any, found: Any, **k: Any):
            logits.append(found.logits[[0, *(node + 1 for node in paths[0])]])
            commit(trees, paths, wanted, found, **k)

        engine.verify, engine.commit = watched_verify, watched_commit
        plain = Plain(Verifier(world.target, 1, ROOM, CPU))
        steps = budgeted_reply(engine, plain, TOKENS)
        return Recorded(steps, engine.requests[0].reply, routes, torch.cat(logits))

    return recorded


@torch.no_grad()
def plain_logits(world: Checkpoint, reply: list[int]) -> torch.Tensor:
    """The trained target's own, before each token of a reply but the first."""
    text = torch.tensor([*OPENING, *reply[:-1]])
    return world.target(text[None]).logits[0, PROMPT:]


@pytest.mark.parametrize("given", [False, True])
def test_without_a_budget_nothing_is_off(record: Record, given: bool) -> None:
    """Neither in distribution nor in its best token nor in loss."""
    found = record(given=given)
    assert max(found.each("kl")) < 1e-8
    assert all(found.each("agrees"))
    assert found.each("loss") == pytest.approx(found.each("plain_loss"), abs=1e-4)


def test_a_budget_is_felt(record: Record) -> None:
    """With two of eight experts the output is another."""
    assert np.mean(record(FEW).each("kl")) > 1e-4


@pytest.mark.parametrize("budget", [None, FEW, Budget((3, 3, 3), ranking="oracle")])
def test_what_is_given_is_what_is_committed(
    record: Record, budget: Budget | None
) -> None:
    """Whatever the model would have said."""
    found = record(budget, given=True)
    assert found.reply == TEXT[: len(found.reply)]
    assert len(found.reply) > TOKENS


def test_decoded_text_is_the_budgeted_model_s_own(record: Record) -> None:
    """Its best token, each time."""
    found = record(FEW)
    assert found.reply[1:] == found.logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("given", [False, True])
def test_steps_add_up(record: Record, given: bool) -> None:
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


def test_speculation_is_recorded_and_not_plain_decoding(record: Record) -> None:
    """Some steps commit more than a token."""
    assert max(step["committed"] for step in record(FEW).steps) > 1


@pytest.mark.parametrize("given", [False, True])
def test_the_reference_reads_the_same_text(
    record: Record, world: Checkpoint, given: bool
) -> None:
    """Its loss is that of the target as it was trained, over prompt and reply."""
    found = record(FEW, given)
    logits = plain_logits(world, found.reply)
    next_tokens = torch.tensor(found.reply[1:])
    losses = torch.nn.functional.cross_entropy(logits, next_tokens, reduction="none")
    assert found.each("plain_loss") == pytest.approx(losses.tolist(), abs=1e-4)


@pytest.mark.parametrize("given", [False, True])
def test_divergence_is_from_the_reference_to_the_budgeted(
    record: Record, world: Checkpoint, given: bool
) -> None:
    """Sum of p log(p / q) over the vocabulary, and so never below 0."""
    found = record(FEW, given)
    p = plain_logits(world, found.reply).double().softmax(dim=1).numpy()
    q = found.logits.double().softmax(dim=1).numpy()
    expected = [sum(a * np.log(a / b)) for a, b in zip(p, q, strict=True)]
    assert found.each("kl") == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert min(found.each("kl")) > -1e-12
    same = [a.argmax() == b.argmax() for a, b in zip(p, q, strict=True)]
    assert found.each("agrees") == same


def test_loss_is_the_budgeted_model_s(record: Record) -> None:
    """Of the token that was committed."""
    found = record(FEW, given=True)
    next_tokens = torch.tensor(found.reply[1:])
    losses = torch.nn.functional.cross_entropy(
        found.logits, next_tokens, reduction="none"
    )
    assert found.each("loss") == pytest.approx(losses.tolist(), abs=1e-5)


@pytest.mark.parametrize("budget", [None, FEW, Budget((3, 3, 3), ranking="oracle")])
def test_a_union_is_of_what_ran(record: Record, budget: Budget | None) -> None:
    """Distinct experts of the budgeted forward, mean over layers."""
    found = record(budget)
    for step, routes in zip(found.steps, found.routes, strict=True):
        activated = [len(set(own.flatten().tolist())) for own in routes]
        assert step["union"] == pytest.approx(np.mean(activated))
    if budget is not None:
        assert max(s["union"] for s in found.steps) <= np.mean(budget.per_layer)
