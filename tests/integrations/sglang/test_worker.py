"""One step of SGLang's worker with a cut tree, and all of it put back."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evict_profile.integrations.sglang.graphs import own_state
from evict_profile.integrations.sglang.serving import Serving
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.tree import cut
from evict_profile.integrations.sglang.worker import truncating
from tests.integrations.sglang.server import (
    HIDDEN,
    STEPS,
    TOPK,
    WIDTH,
    Batch,
    Worker,
    start,
)

CAPTURE_SIZES = tuple(range(1, WIDTH + 1))
ON = Settings("on", table=Path("t.json"), capture_sizes=CAPTURE_SIZES)


@pytest.fixture
def made(sglang, covered, monkeypatch):
    """A truncating worker over the fake one, whose widths are set by hand; and what
    it asked of its state."""
    worker = start(ON)
    serving = worker.evict_profile
    script = SimpleNamespace(
        worker=worker, serving=serving, log=worker.log, width=WIDTH, pausing=False
    )
    script.chosen, script.weighed, script.verified = [], [], []

    def choose(batch, drafted):
        script.chosen.append(drafted)
        serving.width = script.width
        return cut(drafted, script.width)

    def pauses(batch):
        if script.pausing:
            serving.width = 1
        return script.pausing

    monkeypatch.setattr(serving, "choose", choose)
    monkeypatch.setattr(serving, "pauses", pauses)
    monkeypatch.setattr(serving, "weigh", script.weighed.append)
    monkeypatch.setattr(serving, "verified", lambda *told: script.verified.append(told))
    return script


def decode(made, width, size=2):
    made.width, batch = width, Batch(size)
    return batch, made.worker.forward_batch_generation(batch)


def as_it_was(made):
    worker = made.worker
    state = own_state(worker.runner, WIDTH)
    return (
        state.attn_backend.width,
        worker.speculative_num_draft_tokens,
        worker.speculative_num_steps,
    ) == (WIDTH, WIDTH, STEPS)


def test_state_is_made_ready_in_sglangs_order(sglang, monkeypatch):
    serving = Serving(ON)
    worker = truncating(Worker, serving)()
    for stage in ("allocate", "prepare", "ready"):
        tell = partial(worker.log.append, stage)
        monkeypatch.setattr(serving, stage, tell)
    worker.alloc_memory_pool()
    worker.init_cuda_graphs()
    assert worker.log == ["pool", "allocate", "prepare", "graphs", "ready"]


@pytest.mark.parametrize("width", range(2, WIDTH + 1))
def test_the_tree_is_cut_to_the_width(made, width):
    """Verified and captured as if the server had so many draft tokens; built with the
    steps that were drafted, which are the stride of SGLang's list of parents."""
    decode(made, width)
    steps = min(STEPS, width - 1)
    assert made.log == [
        "draft",
        ("build", TOPK, STEPS, width),
        ("verify", width, steps, width),
    ]
    assert made.weighed[0].shape == (2, width - 1)
    [(_, result)] = made.verified
    assert result.speculative_num_draft_tokens == WIDTH
    assert as_it_was(made)


def test_one_token_takes_the_trivial_input(made):
    decode(made, 1)
    assert made.log == ["draft", "trivial", ("verify", 1, 0, 1)]
    assert made.weighed[0].shape == (2, 0)
    assert as_it_was(made)


def test_roots_alone_are_as_wide_integers_as_trees(made):
    """Without overlapped scheduling SGLang leaves them int32; a kernel refuses that."""
    trivial = made.worker._build_trivial_verify_input(Batch(2))
    assert trivial.draft_token.dtype == torch.int64


def test_a_pause_drafts_nothing(made):
    made.pausing = True
    result = made.worker.forward_batch_generation(Batch(3))
    assert made.log == ["trivial", ("verify", 1, 0, 1)]
    assert len(result.next_token_ids) == 3 * WIDTH
    assert as_it_was(made)


class Stopped(Exception):
    """Ends a step."""


def test_the_best_nodes_are_verified_with_their_own_tokens(made, monkeypatch):
    seen = []

    def built(*args, **kwargs):
        seen.append(args)
        raise Stopped

    monkeypatch.setattr(made.worker, "_built", built)
    with pytest.raises(Stopped):
        decode(made, 4)
    assert as_it_was(made)
    (drafted,) = made.chosen
    assert drafted.path_prob.shape == drafted.index.shape == (2, WIDTH - 1)
    assert drafted.topk == TOPK
    assert bool((drafted.path_prob.amax(dim=1) > 0.0).all())
    _, _, _, index, tokens, _ = seen[0]
    best = drafted.path_prob.sort(dim=1, descending=True, stable=True).indices[:, :3]
    kept = best.sort(dim=1).values
    assert torch.equal(index, drafted.index.gather(1, kept))
    assert torch.equal(tokens, drafted.tokens.gather(1, kept))


@pytest.mark.parametrize("width", range(1, WIDTH))
def test_results_are_of_the_full_width_again(made, width):
    _, result = decode(made, width, size=3)
    said = result.next_token_ids.view(3, WIDTH)
    assert bool((said[:, :width] == 99).any(dim=1).all())
    assert not said[:, width:].any()
    hidden = result.logits_output.hidden_states.view(3, WIDTH, HIDDEN)
    expected = torch.arange(3 * width, dtype=torch.float32).view(3, width)
    assert torch.equal(hidden[:, :width, 0], expected)
    assert not hidden[:, width:].any()
    assert result.speculative_num_draft_tokens == WIDTH


def test_results_without_hidden_states_stay_without(made):
    made.worker.hidden = False
    _, result = decode(made, 3)
    assert result.logits_output.hidden_states is None


@pytest.mark.parametrize("width", [1, 4])
def test_cache_slots_are_those_behind_what_is_committed(made, width):
    """As many as were drafted, since drafting goes on in them."""
    batch, _ = decode(made, width)
    table = batch.req_to_token_pool.req_to_token
    expected = [
        table[i, length : length + WIDTH]
        for i, length in enumerate(batch.seq_lens.tolist())
    ]
    assert torch.equal(batch.out_cache_loc, torch.cat(expected))


def test_the_full_width_changes_nothing(made):
    batch, result = decode(made, WIDTH)
    assert not batch.out_cache_loc.any()
    assert len(result.next_token_ids) == 2 * WIDTH


@pytest.mark.parametrize("pausing", [False, True])
@pytest.mark.parametrize("width", [1, 3, WIDTH])
def test_a_failing_verification_leaves_the_worker_as_it_was(made, width, pausing):
    made.worker.fails_in, made.pausing = "verify", pausing
    with pytest.raises(RuntimeError, match="the kernel failed"):
        decode(made, width)
    assert as_it_was(made)


def test_idle_batches_and_prefills_pass_through(made):
    made.width = 3
    assert made.worker.forward_batch_generation(Batch(0, "idle")) == "idle"
    assert made.log[-1] == ("verify", WIDTH, STEPS, WIDTH)
    assert made.worker.forward_batch_generation(Batch(2, "extend")) == "prefilled"
    assert not made.chosen
    assert not made.verified
