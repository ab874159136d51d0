"""One step of SGLang's worker with a cut tree, its graphs, and all of it put back."""

from functools import partial
from pathlib import Path

import pytest
import torch

from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang.graphs import own_state
from evict_profile.integrations.sglang.router import BudgetHook
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.worker import truncating
from evict_profile.runtime import DecodingStep
from tests.integrations.sglang.server import (
    HIDDEN,
    STEPS,
    TOPK,
    WIDTH,
    Batch,
    Worker,
)


@pytest.fixture
def at_width(serves, full_table):
    """Starts a worker that verifies so many tokens of each request."""
    return lambda width: serves(full_table, width=width)


@pytest.fixture
def pausing(serves, full_table, monkeypatch):
    monkeypatch.setattr(DecodingStep, "deeper", lambda step: False)
    return serves(full_table)


def step(worker, size=2):
    batch = Batch(size)
    return batch, worker.forward_batch_generation(batch)


def as_it_was(worker):
    state = own_state(worker.runner, WIDTH)
    return (
        state.attn_backend.width,
        worker.speculative_num_draft_tokens,
        worker.speculative_num_steps,
    ) == (WIDTH, WIDTH, STEPS)


def test_state_is_made_ready_in_sglangs_order(sglang, monkeypatch):
    serving = Serving(Settings("on", table=Path("t.json")))
    worker = truncating(Worker, serving)()
    for stage in ("allocate", "prepare", "ready"):
        monkeypatch.setattr(serving, stage, partial(worker.log.append, stage))
    worker.alloc_memory_pool()
    worker.init_cuda_graphs()
    assert worker.log == ["pool", "allocate", "prepare", "graphs", "ready"]


@pytest.mark.parametrize("width", range(1, WIDTH + 1))
def test_the_tree_is_cut_to_the_width(at_width, width):
    """Verified and captured as if the server had so many draft tokens; built with the
    steps that were drafted, which are the stride of SGLang's list of parents."""
    worker = at_width(width)
    step(worker)
    built = ("build", TOPK, STEPS, width) if width > 1 else "trivial"
    steps = min(STEPS, width - 1)
    assert worker.log == ["draft", built, ("verify", width, steps, width)]
    assert as_it_was(worker)


@pytest.mark.parametrize("width", range(1, WIDTH + 1))
def test_results_are_of_the_full_width_again(at_width, width):
    """Cache slots are those behind what is committed, as many as were drafted, since
    drafting goes on in them."""
    batch, result = step(at_width(width), size=3)
    said = result.next_token_ids.view(3, WIDTH)
    assert bool((said[:, :width] == 99).any(dim=1).all())
    assert not said[:, width:].any()
    hidden = result.logits_output.hidden_states.view(3, WIDTH, HIDDEN)
    expected = torch.arange(3 * width, dtype=torch.float32).view(3, width)
    assert torch.equal(hidden[:, :width, 0], expected)
    assert not hidden[:, width:].any()
    assert result.speculative_num_draft_tokens == WIDTH
    slots = torch.zeros(3 * WIDTH, dtype=torch.int64)
    if width < WIDTH:
        rows = zip(batch.req_to_token_pool.req_to_token, batch.seq_lens, strict=False)
        slots = torch.cat([row[length : length + WIDTH] for row, length in rows])
    assert torch.equal(batch.out_cache_loc, slots)


@pytest.mark.parametrize("width", [1, 3, WIDTH])
def test_what_sglang_planned_for_the_whole_window_is_planned_again(at_width, width):
    """Since 0.5.22, on a GPU with a chain; the worker asserts sizes."""
    worker = at_width(width)
    worker.plans = True
    batch, result = step(worker)
    assert (batch.spec_info.kv_loc_plan is None) == (width < WIDTH)
    assert (result.prepared_draft_extend_inputs is None) == (width < WIDTH)


def test_results_without_hidden_states_stay_without(at_width):
    worker = at_width(3)
    worker.hidden = False
    assert step(worker)[1].logits_output.hidden_states is None


def test_a_budget_is_told_the_nodes_that_are_verified(serves, full_table, monkeypatch):
    weighed = []
    monkeypatch.setattr(BudgetHook, "attach", lambda self, runner: None)
    monkeypatch.setattr(
        BudgetHook, "set_token_weights", lambda self, prob: weighed.append(prob)
    )
    for width in (1, 4):
        worker = serves(full_table, width=width, expert_budget=8)
        worker.route = Worker().route
        step(worker)
    assert [prob.shape for prob in weighed] == [(2, 0), (2, 3)]
    assert bool((weighed[1] > 0.0).any())


def test_roots_alone_are_as_wide_integers_as_trees(at_width):
    """Without overlapped scheduling SGLang leaves them int32; a kernel refuses that."""
    trivial = at_width(4)._build_trivial_verify_input(Batch(2))
    assert trivial.draft_token.dtype == torch.int64


def test_a_pause_drafts_nothing(pausing):
    _, result = step(pausing)
    assert pausing.log == ["trivial", ("verify", 1, 0, 1)]
    assert len(result.next_token_ids) == 2 * WIDTH
    assert as_it_was(pausing)


def test_kept_nodes_are_verified_with_their_own_tokens(at_width, monkeypatch):
    worker, seen = at_width(4), []
    built = worker._built
    monkeypatch.setattr(
        worker, "_built", lambda *given, **k: seen.append(given) or built(*given, **k)
    )
    step(worker)
    [(_, _, _, index, tokens, _)], [drafted] = seen, worker.drafted
    for row in range(2):
        own = dict(
            zip(drafted.index[row].tolist(), drafted.tokens[row].tolist(), strict=True)
        )
        assert tokens[row].tolist() == [own[flat] for flat in index[row].tolist()]


@pytest.mark.parametrize("width", [0, 1, 3, WIDTH])
def test_a_failing_verification_leaves_the_worker_as_it_was(request, width):
    worker = (
        request.getfixturevalue("at_width")(width)
        if width
        else request.getfixturevalue("pausing")
    )
    worker.fails_in = "verify"
    with pytest.raises(RuntimeError, match="the kernel failed"):
        step(worker)
    assert as_it_was(worker)


def test_idle_batches_and_prefills_pass_through(at_width):
    worker = at_width(3)
    assert worker.forward_batch_generation(Batch(0, "idle")) == "idle"
    assert worker.log[-1] == ("verify", WIDTH, STEPS, WIDTH)
    assert worker.forward_batch_generation(Batch(2, "extend")) == "prefilled"
    assert len(worker.log) == 3
