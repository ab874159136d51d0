"""Scores outlive the choice of the tree; routes are forced and recorded."""

from types import SimpleNamespace

import pytest
import torch

from evict_profile.integrations.sglang.buffers import RouteBuffers, Scores
from tests.integrations.sglang.drafter import drafting, organized

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


STEPS, VOCABULARY = 4, 50


class ChainDrafter:
    """A drafter of chains: its forwards give the logits it is told, eager or replayed.

    The eager extension keeps the rows of accepted nodes, as SGLang does, afterwards.
    """

    def __init__(self, logits, topk=1, replays=False):
        self.topk, self.logits = topk, iter(logits)
        self.draft_runner = SimpleNamespace(forward=self._forward)
        replayed = SimpleNamespace(execute=self._output)
        self.cuda_graph_runner_for_draft_extend = replayed if replays else None

    def draft_forward(self, _, batch):
        for _ in range(STEPS - 1):
            self.draft_runner.forward(batch)
        index = torch.arange(STEPS).repeat(len(batch.spec_info.topk_p), 1)
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


LAYERS, TOKENS, TOP_K = [5, 2, 9], 6, 2
FORCED = 1000 + torch.arange(len(LAYERS) * TOKENS * TOP_K).view(-1, TOKENS, TOP_K)
"""Routes [layers, tokens, k] that no router would pick."""


@pytest.fixture
def router():
    made = RouteBuffers()
    made.allocate(LAYERS, TOKENS, TOP_K, "cpu")
    return made


def select(router, layer, tokens=TOKENS):
    """The hook around a router that picks experts from 10 x layer on."""
    ids = torch.arange(tokens * TOP_K).view(tokens, TOP_K) + 10 * (layer or 0)
    weights = torch.full(ids.shape, 0.25)
    out = SimpleNamespace(topk_ids=ids.to(torch.int32), topk_weights=weights)
    return router.select(lambda *args, **kwargs: out, "hidden", layer_id=layer)


def test_an_idle_router_changes_nothing(router):
    out = select(router, 5)
    assert out.topk_ids[0].tolist() == [50, 51]
    assert bool((out.topk_weights == 0.25).all())
    assert not router.routes(TOKENS).any()


def test_routes_are_recorded_in_order_of_layers(router):
    router.recording = True
    for layer in LAYERS:
        select(router, layer)
    assert router.routes(TOKENS)[:, 0, 0].tolist() == [20, 50, 90]
    assert router.routes(4).shape == (3, 4, TOP_K)


@pytest.mark.parametrize("tokens", [2, TOKENS])
def test_forced_routes_replace_the_routers_own_and_are_recorded(router, tokens):
    """In buffers that stay where they are."""
    router.forcing = router.recording = True
    before = [b[5].data_ptr() for b in (router.forced, router.recorded)]
    router.force(FORCED[:, :tokens])
    outs = {layer: select(router, layer, tokens) for layer in LAYERS}
    found = torch.stack([outs[layer].topk_ids for layer in sorted(LAYERS)])
    assert torch.equal(found, FORCED[:, :tokens].int())
    assert torch.equal(router.routes(tokens), found)
    assert all(bool((out.topk_weights == 0.5).all()) for out in outs.values())
    assert [b[5].data_ptr() for b in (router.forced, router.recorded)] == before


def test_routes_of_other_layers_are_refused(router):
    with pytest.raises(ValueError, match="zip"):
        router.force(FORCED[:2])


@pytest.mark.parametrize(("layer", "tokens"), [(7, 6), (None, 6), (5, 7)])
def test_calls_without_a_buffer_pass_through(router, layer, tokens):
    router.forcing = router.recording = True
    router.force(FORCED)
    assert select(router, layer, tokens).topk_ids[0, 0] == 10 * (layer or 0)
    assert not router.routes(TOKENS).any()
