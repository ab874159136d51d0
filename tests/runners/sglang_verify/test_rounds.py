"""Rounds that decide: the decision is real, and nothing is cut."""

from types import SimpleNamespace

import pytest
import torch

from evict_profile.integrations.sglang.decision import Metrics
from evict_profile.integrations.sglang.tree import Drafted
from runners.protocol import Refusal
from runners.sglang_verify.rounds import Decided, ForcedServing, assumed_table

WIDTHS, TOPK = (1, 2, 4, 7), 2


@pytest.fixture
def worker():
    runner = SimpleNamespace(device="cpu", forward=lambda: None)
    target = SimpleNamespace(model_runner=runner)
    return SimpleNamespace(speculative_num_draft_tokens=7, target_worker=target)


def batch_of(requests, context):
    decodes = SimpleNamespace(is_decode=lambda: True)
    lengths = torch.full((requests,), context)
    return SimpleNamespace(forward_mode=decodes, seq_lens=lengths, seq_lens_cpu=lengths)


def drafted(requests, probability):
    """Two roots' children, and theirs: six nodes, all of one probability."""
    index = torch.arange(6).repeat(requests, 1)
    groups = torch.tensor([[-1, 0, 1]]).repeat(requests, 1)
    return Drafted(groups, index, index, torch.full((requests, 6), probability), TOPK)


@pytest.mark.parametrize("context", [1, 512, 10**6])
@pytest.mark.parametrize("requests", [1, 16])
def test_a_decision_is_made_and_the_whole_tree_is_kept(worker, requests, context):
    mode = Decided(assumed_table(WIDTHS), None, worker, Metrics())
    chosen, choose = [], mode._chooser.choose
    mode._chooser.choose = lambda *given: chosen.append(choose(*given)) or chosen[-1]
    for probability in (0.001, 1.0):
        batch = batch_of(requests, context)
        mode.verified(batch, SimpleNamespace(accept_lens=torch.full((requests,), 7)))
        assert mode.can_pause and mode.steps(batch) is None
        places = mode.choose(batch, drafted(requests, probability))
        assert places.tolist() == [list(range(6))] * requests
    assert [each.width for each in chosen] == [1, 7]


def test_a_round_that_did_not_decide_is_no_measurement(worker):
    """The plug-in may fail within a round, and then decides nothing."""
    serving = ForcedServing()
    serving.worker = worker
    serving.run_on(dict.fromkeys(WIDTHS))
    with serving.deciding():
        assert isinstance(serving._mode, Decided) and serving.active
    assert not serving.active
    undecided = pytest.raises(Refusal, match="not 0 as the plug-in decides")
    with undecided, serving.deciding():
        serving.active = False


def test_a_round_decides_first_whether_it_drafts(worker, monkeypatch):
    """As in a server; so what deciding adds to a step holds both decisions."""
    asked, serving = [], ForcedServing()
    serving.worker = worker
    serving.run_on(dict.fromkeys(WIDTHS))
    monkeypatch.setattr(Decided, "steps", lambda mode, batch: asked.append(batch))
    with serving.deciding():
        serving.drafts(batch_of(2, 64))
    with serving.cutting(0):
        serving.drafts(batch_of(2, 64))
    assert len(asked) == 1
