"""Captured functions, replayed with other inputs, equal the same functions run anew."""

from types import SimpleNamespace

import pytest
import torch

from evict_profile.integrations.sglang import router
from evict_profile.integrations.sglang.router import BudgetHook, RouteBuffers
from evict_profile.integrations.sglang.tree import Scores
from tests.sglang.rehearsal.stand_ins import (
    RouterConfig,
    TopKOutput,
    chain_batch,
    chain_drafter,
    drafted_lists,
    organize,
    select_by_config,
)
from tests.sglang.rehearsal.tape import captured

TOPK, STEPS, TOKENS = 4, 3, 8
ROOM = 6
"""Requests of the pool: fewer than the largest captured batch, which is padded."""


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Draft:
    """A captured draft of one batch size, with its static inputs."""

    def __init__(self, scores, batch):
        self.lists = drafted_lists(batch, TOPK, STEPS, "cpu")
        self.graph, _ = captured(lambda: scores.keep(organize, *self.lists, TOKENS))

    def replay(self):
        """Draft other trees, and return their scores."""
        for level in self.lists[0]:
            level.uniform_()
        self.graph.replay()
        index = organize(*self.lists, TOKENS)[1]
        return torch.cat(self.lists[0], dim=1).flatten(1).gather(1, index)


@pytest.fixture
def scores():
    made = Scores()
    made.allocate(ROOM, TOKENS, "cpu")
    return made


def test_a_replayed_draft_leaves_its_scores(scores):
    """Graphs of all batch sizes share one buffer; padding is dropped."""
    drafts = [Draft(scores, batch) for batch in (8, 4, 1)]
    for draft in drafts:
        expected = draft.replay()[:ROOM]
        assert torch.equal(scores.last(len(expected)), expected)


def test_a_smaller_batch_leaves_the_rows_behind_it(scores):
    large, small = Draft(scores, 4), Draft(scores, 1)
    expected = large.replay()
    expected[:1] = small.replay()
    assert torch.equal(scores.last(4), expected)


def test_a_replayed_chain_leaves_its_probabilities():
    """They are products of what the drafter's logits say within the graph."""
    scores, steps = Scores(), iter(range(1000))
    scores.allocate(4, STEPS + 2, "cpu")
    logits, first = [torch.randn(4, 50) for _ in range(STEPS)], torch.rand(4, 1)

    def forward(batch):
        each = logits[next(steps) % STEPS]
        return SimpleNamespace(next_token_logits=each)

    def draft_forward(drafter, batch):
        for _ in range(STEPS):
            drafter.draft_runner.forward(batch)

    drafter, batch = chain_drafter(forward, STEPS), chain_batch(first)
    graph, _ = captured(lambda: scores.keep_chain(draft_forward, drafter, batch))
    first.uniform_()
    for each in logits:
        each.normal_()
    graph.replay()
    best = [each.softmax(-1).amax(-1, keepdim=True) for each in logits]
    expected = torch.cat([first, *best], dim=1).cumprod(dim=1)
    torch.testing.assert_close(scores.last(4), expected)


def test_replayed_routes_are_those_of_the_buffers():
    """A graph forces and records as it did when it was captured."""
    buffers, rows = RouteBuffers(), 12
    buffers.allocate([0, 1], rows, 2, "cpu")
    buffers.forcing = buffers.recording = True
    logits = torch.randn(rows, 8)

    def select(layer_id):
        weights, ids = logits.softmax(-1).topk(2)
        return TopKOutput(weights, ids.int())

    graph, out = captured(
        lambda: [buffers.select(select, layer_id=layer) for layer in (0, 1)]
    )
    buffers.forcing = buffers.recording = False
    routes = torch.randint(0, 8, (2, rows, 2), dtype=torch.int32)
    buffers.force(routes)
    graph.replay()
    assert torch.equal(torch.stack([each.topk_ids for each in out]), routes)
    assert torch.equal(buffers.routes(rows), routes)


def test_a_replayed_budget_reads_new_gates_weights_and_padding(monkeypatch):
    monkeypatch.setattr(router, "check_model", lambda *model: None)
    monkeypatch.setattr(router, "experts", lambda model: [0])
    hook, gates = BudgetHook(3), torch.randn(8, 32)
    hook.allocate(16, "cpu")

    def forward(ids, positions, batch):
        config = RouterConfig(top_k=2)
        return hook.budgeted(select_by_config, gates, gates, config, layer_id=0)

    model = SimpleNamespace(forward=forward)
    hook.attach(SimpleNamespace(model=model))
    slots = torch.tensor([5, 6, 7, 8, 9, 10, 0, 0])
    mode = SimpleNamespace(is_target_verify=lambda: True)
    batch = SimpleNamespace(forward_mode=mode, out_cache_loc=slots)
    with hook.enabled():
        hook.set_token_weights(torch.tensor([[1.0] * 3, [0.0] * 3]))
        graph, out = captured(lambda: model.forward(None, None, batch))
        gates.normal_()
        hook.set_token_weights(torch.tensor([[0.0] * 3, [1.0] * 3]))
        slots.copy_(torch.tensor([5, 6, 7, 8, 9, 10, 11, 0]))
        graph.replay()
        expected = model.forward(None, None, batch)
    assert all(map(torch.equal, out, expected))
    assert out[1][:7].unique().numel() <= 3


def test_a_capture_refuses_what_a_gpu_refuses():
    with pytest.raises(RuntimeError, match="not permitted when a stream is capturing"):
        captured(lambda: torch.ones(3).sum().item())
    with pytest.raises(RuntimeError, match="nonzero"):
        captured(lambda: torch.ones(3).nonzero())
