"""What the runner answers about budgets: replies, learning, and times of routing."""

import math
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runners.protocol import Message, Refusal
from runners.tree_decoding import budget_session as module
from runners.tree_decoding import session as session_module
from runners.tree_decoding.budget_session import BudgetSession, Given, Watch
from runners.tree_decoding.budgets import Budget
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.corpus import HeldOut
from runners.tree_decoding.session import TraceSession
from runners.tree_decoding.tree import TreeShape
from runners.tree_decoding.verifier import Verifier
from tests.runners.tree_decoding.decoding import CPU
from tests.runners.tree_decoding.test_session import OPTIONS, Prompts

NO_BUDGET = {
    "per_layer": None,
    "mode": "substitution",
    "ranking": "mass",
    "exponent": 0.0,
    "kept": None,
}
FEW = {**NO_BUDGET, "per_layer": [2, 3, 2]}
REPLY = {"workload": "prose", "prompt": 1, "prompts": 4, "tokens": 6, "given": False}
LEARN = {
    "workloads": ["prose"],
    "prompts": 4,
    "learn_from": 1,
    "tokens": 6,
}


@pytest.fixture
def session(world: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> BudgetSession:
    """A session over random weights."""
    monkeypatch.setattr(session_module, "open_world", lambda folder: world)
    monkeypatch.setattr(session_module, "HeldOut", Prompts)
    return BudgetSession(TraceSession("nowhere", OPTIONS))


def test_a_reply_has_a_row_a_step(session: BudgetSession) -> None:
    """Behind the prompt, until it has the tokens asked for."""
    steps = session.record({**REPLY, **FEW})["steps"]
    assert steps[0]["position"] == 0
    assert steps[0]["context"] == 12
    assert sum(step["committed"] for step in steps) >= 6
    assert all(step["union"] <= 7 / 3 + 1e-9 for step in steps)


def test_the_same_request_is_the_same_reply(session: BudgetSession) -> None:
    """To the last bit, so that a recording can go on."""
    ask = {**REPLY, **FEW, "given": True}
    assert session.record(ask) == session.record(ask)
    assert session.record(ask) != session.record({**ask, "prompt": 2})


def test_the_first_token_is_the_same_under_every_budget(
    session: BudgetSession,
) -> None:
    """Prompts have none, so settings are compared behind the same text."""
    none, few = (session.record({**REPLY, **b})["steps"][0] for b in (NO_BUDGET, FEW))
    assert none["plain_loss"][0] < math.inf
    assert (none["position"], none["context"]) == (few["position"], few["context"])
    assert none["kl"][0] == pytest.approx(0.0, abs=1e-8)
    assert few["kl"][0] > 0.0


def test_a_reply_too_long_is_refused(session: BudgetSession) -> None:
    """Contexts are trained to some length."""
    with pytest.raises(Refusal, match="replies of 1024 at most"):
        session.record({**REPLY, **FEW, "tokens": 2000})


def test_a_budget_that_no_layer_can_keep_is_refused(session: BudgetSession) -> None:
    """Before anything is decoded."""
    with pytest.raises(Refusal, match="from 2 to 8"):
        session.record({**REPLY, **FEW, "per_layer": [2, 9, 2]})


def test_masses_are_of_each_layer(session: BudgetSession) -> None:
    """Shares of the whole."""
    shares = torch.tensor(session.expert_mass(LEARN)["mass"])
    assert shares.shape == (3, 8)
    assert (shares > 0.0).all()
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))


def test_a_budgets_damage_is_on_given_text_behind_odd_prompts(
    session: BudgetSession,
) -> None:
    """Mean over its tokens; one layer alone does another than all."""
    ask = {**REPLY, "given": True}
    found = set()
    for per_layer in ((2, 8, 8), (8, 2, 8), (2, 2, 2)):
        damage = session.budget_kl({**LEARN, **NO_BUDGET, "per_layer": per_layer})
        steps = session.reply(ask, 1, Budget(per_layer))
        assert damage == {"kl": pytest.approx(fmean(k for s in steps for k in s["kl"]))}
        found.add(damage["kl"])
    assert len(found) == 3


def test_no_budget_does_no_damage(session: BudgetSession) -> None:
    """But rounding."""
    found = session.budget_kl({**LEARN, **NO_BUDGET})
    assert found["kl"] == pytest.approx(0.0, abs=1e-8)


class Windows:
    """A tracing session that decodes nothing, and notes which text it is asked for.

    Attributes:
        spans: first and last place of each prompt with its reply and the last tree.
    """

    def __init__(self, length: int, world: Checkpoint) -> None:
        self.held_out = HeldOut.__new__(HeldOut)
        # Each token is its own place in the text.
        self.held_out.streams = {"prose": torch.arange(length)}
        self.world, self.device, self.vocab = world, CPU, 12
        self.prompt_tokens, self.tree = 128, TreeShape(5, 8, 60)
        self.spans = set[tuple[int, int]]()

    def engine(self, batch: int, tokens: int, budget: object) -> Any:
        """Takes a request."""

        def admit(prompt: list[int], choice: Any, slot: int) -> None:
            last = prompt[-1] + tokens + self.tree.depth + 2
            assert len(prompt) == 128
            if isinstance(choice, Given):
                assert choice.text == list(range(prompt[-1] + 1, last + 1))
            self.spans.add((prompt[0], last))

        return SimpleNamespace(admit=admit)


@pytest.mark.parametrize(
    ("length", "prompts"),
    [(114_992, 16), (114_992, 24), (61_987, 16), (61_987, 24), (8_000, 20)],
)
def test_no_text_is_both_learnt_from_and_recorded(
    world: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    prompts: int,
) -> None:
    """Neither in as many tokens as worlds/stdlib holds out of code and prose, nor
    where no further prompt would fit."""
    monkeypatch.setattr(module, "budgeted_reply", lambda *_: [{"kl": [0.0]}])
    windows = Windows(length, world)
    session = BudgetSession(windows)  # type: ignore[arg-type]
    for prompt in range(prompts):
        ask = {"prompt": prompt, "prompts": prompts, "tokens": 64, "given": True}
        session.record({**REPLY, **NO_BUDGET, **ask})
    assert len(windows.spans) == prompts
    learn = {**LEARN, **NO_BUDGET}
    session.budget_kl({**learn, "prompts": prompts, "learn_from": 4, "tokens": 32})
    assert len(windows.spans) == prompts + 4
    assert all(a[1] < b[0] for a, b in pairwise(sorted(windows.spans)))


def test_watched_a_layer_routes_as_the_model_does(world: Checkpoint) -> None:
    """And each verification counts alike, however wide."""
    layers = Verifier(world.target, 1, 1, CPU).stack.moe
    watch, expected = Watch(3, 8, CPU), torch.zeros(8)
    for tokens in (3, 11):
        x = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(tokens))
        found = watch()(1, layers[1], x)
        assert all(map(torch.equal, found, layers[1].router(x)))
        expected += layers[1].router.scores(x).mean(dim=0)
    torch.testing.assert_close(watch.mass[1], expected)
    assert not watch.mass[[0, 2]].any()


@pytest.mark.parametrize(
    "named",
    [
        {"per_layer": [2, 3, 2]},
        {"per_layer": [2, 3, 2], "mode": "truncation"},
        {"per_layer": [2, 2, 2], "ranking": "top-k", "exponent": 0.5},
        {"per_layer": [2, 2, 2], "ranking": "kept", "kept": [[0, 1], [3, 4], [6, 7]]},
    ],
)
def test_routing_can_be_timed_under_every_rule(
    session: BudgetSession, named: Message
) -> None:
    """A number of microseconds; how large, no test can say."""
    found = session.clock_routing({**NO_BUDGET, **named})
    assert list(found) == ["routing_us"]
    assert math.isfinite(found["routing_us"])
