"""One step of SGLang's worker with a cut tree, and all of it put back."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evict_profile.integrations.sglang.buffers import Scores
from evict_profile.integrations.sglang.graphs import own_state, swapped
from evict_profile.integrations.sglang.worker import build_verify_input, truncating
from tests.integrations.sglang.server import (
    HIDDEN,
    STEPS,
    TOPK,
    WIDTH,
    Batch,
    Context,
    IntelAMXAttnBackend,
    Worker,
)


class Scripted:
    """What a worker asks of its state, with a width that is set by hand."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.follows, self.full_width = worker, True, WIDTH
        self.scores, self.next, self.width = Scores(), WIDTH, WIDTH
        self.pausing = False
        self.stages: list[Any] = []
        self.chosen: list[Any] = []
        self.weighed: list[Any] = []
        self.backends = {m: IntelAMXAttnBackend(m) for m in range(1, WIDTH)}

    def allocate(self) -> None:
        """Buffers."""
        self.stages.append("allocate")
        self.scores.allocate(4, WIDTH, "cpu")

    def prepare(self) -> None:
        """Checks."""
        self.stages.append("prepare")

    def ready(self) -> None:
        """What verifies each width."""
        self.stages.append("ready")

    def step(self, batch: Any) -> Any:
        """Around a step."""
        from contextlib import nullcontext

        self.width = WIDTH
        return nullcontext()

    def pauses(self, batch: Any) -> bool:
        """Whether nothing is drafted."""
        if self.pausing:
            self.width = 1
        return self.pausing

    def choose(self, batch: Any, drafted: Any) -> int:
        """The width."""
        self.chosen.append(drafted)
        self.width = self.next
        return self.width

    def weigh(self, path_prob: Any) -> None:
        """What is verified behind each root."""
        self.weighed.append(path_prob)

    def graphs(self) -> Any:
        """The graphs of this width."""
        from contextlib import nullcontext

        if self.width == WIDTH:
            return nullcontext()
        state = SimpleNamespace(
            width=self.width, attn_backend=self.backends[self.width], graph_runner=None
        )
        return swapped(self.worker.runner, state)

    def verified(self, batch: Any, result: Any) -> None:
        """What was accepted."""
        self.stages.append(("verified", result.speculative_num_draft_tokens))


@pytest.fixture
def made(sglang: Context) -> Any:
    """A truncating worker over the fake one, ready to decode."""
    worker = truncating(Worker, Scripted)()
    serving = worker.evict_profile
    worker.keep = serving.scores.keep
    worker.build = lambda original, *args, **kwargs: build_verify_input(
        original, serving, *args, **kwargs
    )
    worker.alloc_memory_pool()
    worker.init_cuda_graphs()
    worker.log.clear()
    serving.stages.clear()
    return worker


def decode(worker: Any, width: int, size: int = 2) -> tuple[Batch, Any]:
    """One step at a width."""
    worker.evict_profile.next = width
    batch = Batch(size)
    return batch, worker.forward_batch_generation(batch)


def as_it_was(worker: Any) -> bool:
    """Whether nothing of a cut is left in a worker."""
    state = own_state(worker.runner, WIDTH)
    return (
        state.attn_backend.width,
        worker.speculative_num_draft_tokens,
        worker.speculative_num_steps,
    ) == (WIDTH, WIDTH, STEPS)


def test_state_is_made_ready_in_sglangs_order(sglang: Context) -> None:
    order: list[Any] = []

    class Ordered(Worker):
        def alloc_memory_pool(self) -> None:
            order.append("pool")

        def init_cuda_graphs(self) -> None:
            order.append("graphs")

    worker = truncating(Ordered, Scripted)()
    worker.evict_profile.stages = order
    worker.alloc_memory_pool()
    worker.init_cuda_graphs()
    assert order == ["pool", "allocate", "prepare", "graphs", "ready"]


@pytest.mark.parametrize("width", range(2, WIDTH + 1))
def test_the_tree_is_cut_to_the_width(made: Any, width: int) -> None:
    """Verified and captured as if the server had so many draft tokens; built with the
    steps that were drafted, which are the stride of SGLang's list of parents."""
    decode(made, width)
    steps = min(STEPS, width - 1)
    assert made.log == [
        "draft",
        ("build", TOPK, STEPS, width),
        ("verify", width, steps, width),
    ]


@pytest.mark.parametrize("width", range(1, WIDTH + 1))
def test_the_worker_is_given_back(made: Any, width: int) -> None:
    decode(made, width)
    assert as_it_was(made)


def test_one_token_takes_the_trivial_input(made: Any) -> None:
    decode(made, 1)
    assert made.log == ["draft", "trivial", ("verify", 1, 0, 1)]


def test_roots_alone_are_as_wide_integers_as_trees(made: Any) -> None:
    """Without overlapped scheduling SGLang leaves them int32; a kernel refuses that."""
    trivial = made._build_trivial_verify_input(Batch(2))
    assert trivial.draft_token.dtype == torch.int64


def test_a_pause_drafts_nothing(made: Any) -> None:
    made.evict_profile.pausing = True
    batch = Batch(3)
    result = made.forward_batch_generation(batch)
    assert made.log == ["trivial", ("verify", 1, 0, 1)]
    assert len(result.next_token_ids) == 3 * WIDTH
    assert as_it_was(made)


def test_a_decision_sees_the_scores_of_the_draft(made: Any) -> None:
    decode(made, 4)
    (drafted,) = made.evict_profile.chosen
    assert drafted.path_prob.shape == drafted.index.shape == (2, WIDTH - 1)
    assert drafted.topk == TOPK
    assert bool((drafted.path_prob.amax(dim=1) > 0.0).all())


def test_the_best_nodes_are_verified(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        made, "_built", lambda *args, **kwargs: seen.append(args) or stop()
    )
    with pytest.raises(InterruptedError):
        decode(made, 4)
    (drafted,) = made.evict_profile.chosen
    _, _, _, index, tokens, _ = seen[0]
    best = drafted.path_prob.sort(dim=1, descending=True, stable=True).indices[:, :3]
    places = best.sort(dim=1).values
    assert torch.equal(index, drafted.index.gather(1, places))
    assert torch.equal(tokens, drafted.tokens.gather(1, places))


def stop() -> None:
    """End a step."""
    raise InterruptedError


@pytest.mark.parametrize("width", range(1, WIDTH))
def test_results_are_of_the_full_width_again(made: Any, width: int) -> None:
    """Each request's rows in front of its own places, as drafting goes on there."""
    _, result = decode(made, width, size=3)
    said = result.next_token_ids.view(3, WIDTH)
    assert bool((said[:, :width] == 99).any(dim=1).all())
    assert not said[:, width:].any()
    hidden = result.logits_output.hidden_states.view(3, WIDTH, HIDDEN)
    expected = torch.arange(3 * width, dtype=torch.float32).view(3, width)
    assert torch.equal(hidden[:, :width, 0], expected)
    assert not hidden[:, width:].any()
    assert result.speculative_num_draft_tokens == WIDTH


def test_results_without_hidden_states_stay_without(made: Any) -> None:
    made.hidden = False
    _, result = decode(made, 3)
    assert result.logits_output.hidden_states is None


@pytest.mark.parametrize("width", [1, 4])
def test_cache_slots_are_those_behind_what_is_committed(made: Any, width: int) -> None:
    """As many as were drafted, since drafting goes on in them."""
    batch, _ = decode(made, width)
    table = batch.req_to_token_pool.req_to_token
    expected = [
        table[i, length : length + WIDTH]
        for i, length in enumerate(batch.seq_lens.tolist())
    ]
    assert torch.equal(batch.out_cache_loc, torch.cat(expected))


def test_the_full_width_changes_nothing(made: Any) -> None:
    batch, result = decode(made, WIDTH)
    assert made.log[-1] == ("verify", WIDTH, STEPS, WIDTH)
    assert not batch.out_cache_loc.any()
    assert len(result.next_token_ids) == 2 * WIDTH


@pytest.mark.parametrize("width", [1, 3, WIDTH])
def test_state_hears_of_results_of_the_full_width(made: Any, width: int) -> None:
    decode(made, width)
    assert made.evict_profile.stages == [("verified", WIDTH)]


@pytest.mark.parametrize("width", [1, 3, WIDTH])
def test_a_failing_verification_leaves_the_worker_as_it_was(
    made: Any, width: int
) -> None:
    made.fails_in = "verify"
    with pytest.raises(RuntimeError, match="the kernel failed"):
        decode(made, width)
    assert as_it_was(made)


def test_a_failing_build_leaves_the_worker_as_it_was(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "_built", lambda *args, **kwargs: stop())
    with pytest.raises(InterruptedError):
        decode(made, 3)
    assert as_it_was(made)


def test_a_failing_pause_leaves_the_worker_as_it_was(made: Any) -> None:
    made.evict_profile.pausing, made.fails_in = True, "verify"
    with pytest.raises(RuntimeError, match="the kernel failed"):
        decode(made, 3)
    assert as_it_was(made)


def test_idle_batches_pass_through(made: Any) -> None:
    batch = Batch(0, "idle")
    made.evict_profile.next = 3
    assert made.forward_batch_generation(batch) == "idle"
    assert made.log[-1] == ("verify", WIDTH, STEPS, WIDTH)
    assert not made.evict_profile.chosen
    assert not made.evict_profile.stages


def test_prefills_pass_through(made: Any) -> None:
    assert made.forward_batch_generation(Batch(2, "extend")) == "prefilled"
    assert not made.evict_profile.stages


def test_without_following_nothing_is_asked(made: Any) -> None:
    made.evict_profile.follows = False
    decode(made, 3)
    assert not made.evict_profile.chosen
    assert made.log[-1] == ("verify", WIDTH, STEPS, WIDTH)
