"""Steps draft fewer levels with a backend and graphs of their own, and nothing else."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from evict_profile.integrations.sglang import drafts, serving
from evict_profile.integrations.sglang.decision import Chooser
from evict_profile.integrations.sglang.drafts import FewerLevels, check_fewer_steps
from evict_profile.records import replace
from tests.integrations.sglang import server
from tests.integrations.sglang.server import STEPS, Batch, EagleDraftWorker, Worker

FEWER, NARROW = 2, 6
"""Levels, and tokens of a tree that so few levels can fill."""


@pytest.fixture
def served(serves, full_table, sglang, monkeypatch):
    """A server whose trees are narrow enough; and its drafter."""
    monkeypatch.setattr(server, "WIDTH", NARROW)
    sglang.options["speculative_num_draft_tokens"] = NARROW
    worker = serves(full_table, fewer_steps=FEWER)
    return worker, worker.drafter


def chooses(monkeypatch, *depths):
    """Steps draft these levels, one after the other."""
    decided = iter(depths)
    monkeypatch.setattr(Chooser, "steps", lambda self, requests: next(decided))
    monkeypatch.setattr(Chooser, "pause", lambda self, requests, context: None)


def drafted_levels(worker):
    return [each[2] for each in worker.log if each[0] == "build"]


def test_a_step_drafts_the_levels_that_were_chosen(served, monkeypatch):
    worker, drafter = served
    before = dict(vars(drafter))
    chooses(monkeypatch, FEWER, STEPS, FEWER, FEWER)
    for _ in range(4):
        worker.forward_batch_generation(Batch(2))
    assert drafted_levels(worker) == [FEWER, STEPS, FEWER, FEWER]
    assert vars(drafter) == before
    assert drafter.draft_runner.draft_attn_backend.steps == STEPS


def test_graphs_of_extensions_are_not_captured_again(served, sglang):
    _, drafter = served
    assert drafter.cuda_graph_runner_for_draft_extend.steps == STEPS
    assert drafter.draft_runner.attn_backend is drafter.draft_extend_attn_backend
    assert sglang.options["speculative_num_steps"] == STEPS


def test_nothing_is_built_that_was_not_asked_for(serves, full_table, monkeypatch):
    made, init = [], EagleDraftWorker.init_attention_backend
    monkeypatch.setattr(
        EagleDraftWorker,
        "init_attention_backend",
        lambda drafter: made.append(drafter) or init(drafter),
    )
    worker = serves(full_table)
    worker.forward_batch_generation(Batch(1))
    assert drafted_levels(worker) == [STEPS]
    assert made == [worker.drafter]


def test_a_paused_step_drafts_nothing_and_a_failed_one_all_levels(
    served, monkeypatch, log
):
    worker, _ = served
    chooses(monkeypatch, FEWER, FEWER)
    monkeypatch.setattr(Chooser, "pause", lambda *asked: "a pause")
    worker.forward_batch_generation(Batch(1))
    assert worker.log[0] == "trivial"
    monkeypatch.setattr(Chooser, "steps", lambda *asked: 1 // 0)
    worker.forward_batch_generation(Batch(1))
    assert drafted_levels(worker) == [STEPS]
    assert "modulo by zero" in log.text


def test_a_cut_that_fails_verifies_the_whole_tree_of_fewer_levels(
    served, monkeypatch, log
):
    worker, _ = served
    chooses(monkeypatch, FEWER)
    monkeypatch.setattr(Chooser, "choose", lambda *asked: 1 // 0)
    worker.forward_batch_generation(Batch(1))
    worker.forward_batch_generation(Batch(1))
    assert drafted_levels(worker) == [FEWER, STEPS]
    assert [width for width, _ in worker.verified] == [NARROW] * 2


def test_levels_that_cannot_be_built_leave_the_server_as_it_was(
    serves, full_table, sglang, monkeypatch, log
):
    monkeypatch.setattr(server, "WIDTH", NARROW)
    sglang.options["speculative_num_draft_tokens"] = NARROW
    init = EagleDraftWorker.init_attention_backend

    def fails(drafter):
        if drafter.speculative_num_steps == FEWER:
            raise RuntimeError("out of memory")
        init(drafter)

    monkeypatch.setattr(EagleDraftWorker, "init_attention_backend", fails)
    worker = serves(full_table, fewer_steps=FEWER)
    worker.forward_batch_generation(Batch(1))
    assert drafted_levels(worker) == [STEPS]
    assert not worker.evict_profile.active
    assert "out of memory" in log.text


def test_graphs_are_captured_for_the_batches_that_the_table_covers(sglang, monkeypatch):
    seen = []
    monkeypatch.setattr(
        drafts, "capturing", lambda *asked: seen.append(asked) or nullcontext()
    )
    drafter = Worker().drafter
    runner = drafter.target_worker.model_runner
    runner.decode_cuda_graph_runner = SimpleNamespace()
    fewer = FewerLevels(nullcontext)
    fewer.steps, fewer.most = FEWER, 16
    fewer.capture(EagleDraftWorker._capture_cuda_graphs, drafter)
    assert seen == [(runner, 16)]


@pytest.mark.parametrize(
    ("steps", "topk", "lacks", "says"),
    [
        (2, 3, "drafting", "has no time of drafting; measure it"),
        (3, 3, "", "=3: the server drafts 3 levels; give fewer"),
        (1, 3, "", "=1: its trees have 3 nodes, and the server's 8; give more"),
        (2, 3, "", ""),
        (1, 1, "", ""),
    ],
)
def test_levels_that_cannot_be_drafted_are_refused(
    full_table, steps, topk, lacks, says
):
    table = replace(full_table, **{lacks: None}) if lacks else full_table
    worker = SimpleNamespace(
        speculative_num_steps=3, topk=topk, speculative_num_draft_tokens=9
    )
    refused = pytest.raises(serving.ConfigError, match=says) if says else nullcontext()
    with refused:
        check_fewer_steps(steps, table, worker)
