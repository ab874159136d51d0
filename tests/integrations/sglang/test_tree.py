"""Depths, parents and cuts of SGLang's flat trees; their scores outlive the draft."""

from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.integrations.sglang import tree
from evict_profile.integrations.sglang.tree import (
    Scores,
    best_nodes,
    depths,
    parents,
    whole_chain,
)
from tests.integrations.sglang.drafter import drafting, on_host, organized, trees

TREES = trees()


@given(TREES)
def test_depth_is_the_level_that_drafted_the_node(made):
    plan, drafted = made
    expected = [
        [own[i].depth for i in row]
        for own, row in zip(plan.nodes, drafted.index.tolist(), strict=True)
    ]
    assert depths(drafted.index, drafted.topk).tolist() == expected


@given(TREES)
def test_parent_is_the_place_of_the_node_it_hangs_on(made):
    plan, drafted = made
    for own, row, found in zip(
        plan.nodes, drafted.index.tolist(), drafted.parent.tolist(), strict=True
    ):
        above = [own[i].parent for i in row]
        assert found == [row.index(each) if each >= 0 else -1 for each in above]


@given(TREES, st.integers(0, 10**6))
def test_parents_on_the_host_are_those_on_the_device(made, seed):
    plan, drafted = made
    dice, drafts = Random(seed), range(len(plan.nodes[0]))
    rows = [sorted(dice.sample(drafts, drafted.width - 1)) for _ in plan.nodes]
    any_nodes = plan.chosen(rows)
    for each in (drafted, any_nodes):
        found = parents(*on_host(each)[1:], np)
        assert found.tolist() == each.parent.tolist()


@given(TREES, st.data())
def test_cut_keeps_the_best(made, data):
    _, drafted = made
    width = data.draw(st.integers(2, drafted.width))
    kept = drafted.at(best_nodes(drafted, width))
    assert kept.width == width
    for before, after in zip(drafted.path_prob, kept.path_prob, strict=True):
        best = before.sort(descending=True).values[: width - 1]
        assert torch.equal(after.sort(descending=True).values, best)


@given(TREES)
def test_every_cut_is_closed_under_ancestors(made):
    plan, drafted = made
    assert plan.is_closed(drafted.index)
    for width in range(2, drafted.width + 1):
        assert plan.is_closed(drafted.at(best_nodes(drafted, width)).index)


@given(TREES, st.data())
def test_cut_keeps_nodes_whole(made, data):
    plan, drafted = made
    kept = drafted.at(best_nodes(drafted, data.draw(st.integers(2, drafted.width))))
    assert bool((kept.index.diff(dim=1) > 0).all())
    again = plan.chosen(kept.index.tolist())
    for name in ("parent_list", "tokens", "path_prob", "parent"):
        assert torch.equal(getattr(kept, name), getattr(again, name))


@pytest.mark.parametrize("width", [-1, 0, 9])
def test_other_widths_are_refused(width):
    drafted = drafting(0, 1, 3, 2).drafted(8)
    with pytest.raises(ValueError, match=rf"width {width} is not within 1\.\.8"):
        best_nodes(drafted, width)


def test_a_node_without_its_parent_has_its_own_place():
    plan = drafting(0, 2, 2, 3)
    (first, second), far = plan.expanded[0][1], 2
    orphan = far + 4 + 1
    drafted = plan.chosen([[0, 1, orphan], [0, 1, far]])
    assert orphan // 2 == 3 and first not in (0, 1) and second not in (0, 1)
    assert drafted.parent[:, :2].tolist() == [[-1, -1], [-1, -1]]
    assert drafted.parent[:, 2].tolist() == [2, 0]


WIDTH, REQUESTS = 9, 4


@pytest.fixture
def scores():
    made = Scores()
    made.allocate(REQUESTS, WIDTH, "cpu")
    return made


def draft(scores, batch, width=WIDTH, seed=3):
    return scores.keep(organized, *drafting(seed, batch, 3, 3).lists(), width)


def test_scores_of_the_chosen_nodes_fill_the_same_buffer(scores):
    addresses = set()
    for batch, seed in ((1, 3), (2, 3), (4, 3), (2, 8)):
        drafts = drafting(seed, batch, 3, 3)
        before, after = (
            organized(*drafts.lists(), WIDTH),
            draft(scores, batch, seed=seed),
        )
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert torch.equal(scores.last(batch), drafts.drafted(WIDTH).path_prob)
        addresses.add(scores.last(batch).data_ptr())
    assert len(addresses) == 1


def test_drafts_of_another_width_pass_through(scores):
    assert draft(scores, 2, WIDTH - 1)[1].shape == (2, WIDTH - 2)
    assert not scores.last(REQUESTS).any()


def test_a_captured_batch_may_be_larger_than_the_request_pool(scores):
    """SGLang rounds the largest captured batch up to a multiple of the ranks."""
    drafts = drafting(3, REQUESTS + 1, 3, 3)
    draft(scores, REQUESTS + 1)
    wanted = drafts.drafted(WIDTH).path_prob[:REQUESTS]
    assert torch.equal(scores.last(REQUESTS), wanted)


def test_trees_are_seen_with_what_was_kept_of_them(scores):
    seen = []
    scores.see = seen.append
    draft(scores, 2)
    draft(scores, 2, WIDTH - 1)
    (drafted,) = seen
    wanted = drafting(3, 2, 3, 3).drafted(WIDTH)
    assert drafted.topk == wanted.topk
    for name in ("parent_list", "index", "tokens", "path_prob"):
        assert torch.equal(getattr(drafted, name), getattr(wanted, name))
    scores.allocate(0, 1, "cpu")
    draft(scores, 2)
    assert seen == [drafted]


STEPS, VOCABULARY = 4, 50


class ChainDrafter:
    """A drafter of chains: its forwards give the logits it is told, eager or replayed.

    The eager extension keeps the rows of accepted nodes, as SGLang does, afterwards.
    """

    def __init__(self, logits, topk=1, replays=False, levels=STEPS):
        self.topk, self.logits = topk, iter(logits)
        self.speculative_num_steps = levels
        self.draft_runner = SimpleNamespace(forward=self._forward)
        replayed = SimpleNamespace(execute=self._output)
        self.cuda_graph_runner_for_draft_extend = replayed if replays else None

    def draft_forward(self, _, batch):
        levels = self.speculative_num_steps
        for _ in range(levels - 1):
            self.draft_runner.forward(batch)
        index = torch.arange(levels).repeat(len(batch.spec_info.topk_p), 1)
        return "parents", index, "tokens", None

    def extend(self, _, batch, result):
        if replayed := self.cuda_graph_runner_for_draft_extend:
            replayed.execute(batch)
            return
        out = self.draft_runner.forward(batch).logits_output
        out.next_token_logits = out.next_token_logits[result.select]

    def _forward(self, batch):
        return SimpleNamespace(logits_output=self._output(batch))

    def _output(self, batch):
        return SimpleNamespace(next_token_logits=next(self.logits))


def chain_batch(first):
    mode = SimpleNamespace(is_idle=lambda: False)
    spec_info = SimpleNamespace(topk_p=torch.tensor(first)[:, None])
    return SimpleNamespace(forward_mode=mode, spec_info=spec_info)


@pytest.fixture
def chain_scores():
    made = Scores()
    made.allocate(REQUESTS, STEPS + 1, "cpu")
    return made


def random_logits(*rows):
    generator = torch.Generator().manual_seed(5)
    return [3.0 * torch.randn(n, VOCABULARY, generator=generator) for n in rows]


def test_a_chain_is_scored_by_the_drafters_probabilities(chain_scores):
    logits, first = random_logits(2, 2, 2), [0.5, 0.25]
    drafter = ChainDrafter(logits)
    buffer = chain_scores.last(2)
    drafted = chain_scores.keep_chain(
        drafter.draft_forward, drafter, chain_batch(first)
    )
    assert drafted[1].shape == (2, STEPS)
    likeliest = [own.double().softmax(-1).amax(-1) for own in logits]
    wanted = torch.stack([torch.tensor(first), *likeliest], 1).cumprod(1)
    torch.testing.assert_close(buffer, wanted.float())
    assert drafter.draft_runner.forward == drafter._forward


def test_chains_of_another_length_pass_through():
    """As of a server that adapts its steps, where nothing is cut."""
    scores = Scores()
    scores.allocate(REQUESTS, STEPS, "cpu")
    drafter = ChainDrafter(random_logits(2, 2, 2))
    scores.keep_chain(drafter.draft_forward, drafter, chain_batch([0.5, 0.5]))
    assert not scores.last(REQUESTS).any()


def test_a_chain_of_fewer_levels_has_the_form_of_a_whole_one():
    drafted = torch.tensor([[7, 8], [9, 10]])
    groups, index, tokens = whole_chain(drafted, 4)
    assert groups.tolist() == [[-1, 0, 1, 2]] * 2
    assert index.tolist() == [[0, 1, 2, 3]] * 2
    assert tokens.tolist() == [[7, 8, 0, 0], [9, 10, 0, 0]]
    assert parents(index, groups, 1, torch).tolist() == [[-1, 0, 1, 2]] * 2


def test_levels_that_were_not_drafted_have_no_probability(chain_scores):
    chain_scores.last(2).fill_(1.0)
    drafter = ChainDrafter(random_logits(2), levels=2)
    chain_scores.keep_chain(drafter.draft_forward, drafter, chain_batch([0.5, 0.25]))
    kept = chain_scores.last(2)
    assert kept[:, 0].tolist() == [0.5, 0.25]
    assert (kept[:, 1] > 0.0).all() and not kept[:, 2:].any()


@pytest.mark.parametrize("replays", [False, True])
def test_the_first_of_a_chain_is_scored_where_the_cache_is_extended(
    chain_scores, replays
):
    """In the rows that were accepted last; a graph gives no others."""
    select = torch.arange(2) if replays else torch.tensor([1, 5])
    (logits,) = random_logits(2 if replays else 6)
    drafter = ChainDrafter([logits], replays=replays)
    drafting = SimpleNamespace(topk_p=torch.ones(2, 1))
    result = SimpleNamespace(select=select, next_draft_input=drafting)
    chain_scores.keep_first(drafter.extend, drafter, "batch", result)
    wanted = logits[select].double().softmax(-1).amax(-1, keepdim=True)
    torch.testing.assert_close(drafting.topk_p, wanted.float())


def test_trees_take_scores_of_their_own(chain_scores):
    drafter = ChainDrafter(random_logits(2, 2, 2, 2), topk=2)
    chain_scores.keep_chain(drafter.draft_forward, drafter, chain_batch([0.5, 0.5]))
    result = SimpleNamespace(select=torch.arange(2))
    chain_scores.keep_first(drafter.extend, drafter, "batch", result)
    assert not chain_scores.last(REQUESTS).any()


@pytest.fixture
def failing(monkeypatch):
    """Scores of chains whose probabilities cannot be computed, and the errors."""
    errors = []

    @contextmanager
    def guarded():
        try:
            yield
        except (AttributeError, ValueError) as error:
            errors.append(error)

    def fails(output):
        raise ValueError("no probability")

    monkeypatch.setattr(tree, "best_probability", fails)
    made = Scores(guarded)
    made.allocate(REQUESTS, STEPS + 1, "cpu")
    return made, errors


def test_a_chain_is_drafted_whose_scores_cannot_be_kept(failing):
    scores, errors = failing
    drafter = ChainDrafter(random_logits(2, 2, 2))
    drafted = scores.keep_chain(drafter.draft_forward, drafter, chain_batch([0.5, 1.0]))
    assert drafted[1].shape == (2, STEPS)
    assert drafter.draft_runner.forward == drafter._forward
    assert errors and not scores.last(REQUESTS).any()


def test_a_cache_is_extended_whose_scores_cannot_be_kept(failing):
    scores, errors = failing
    drafter, drafting = ChainDrafter(random_logits(2)), SimpleNamespace(topk_p="theirs")
    result = SimpleNamespace(select=torch.arange(2), next_draft_input=drafting)
    scores.keep_first(drafter.extend, drafter, "batch", result)
    assert errors and drafting.topk_p == "theirs"


def test_a_drafter_that_cannot_be_watched_drafts(failing):
    scores, errors = failing
    drafter = SimpleNamespace(topk=1, draft_runner=None)
    drafted = scores.keep_chain(lambda *_: "drafted", drafter, chain_batch([0.5, 0.5]))
    assert drafted == "drafted"
    assert "forward" in str(errors[0])
