"""Scores outlive the choice of the tree; routes are forced and recorded."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evict_profile.integrations.sglang.buffers import Router, Scores
from tests.integrations.sglang.drafter import drafting, organized

WIDTH = 9


def kept(seats: int, batch: int, width: int = WIDTH, seed: int = 3) -> Scores:
    """Scores after one draft."""
    scores = Scores()
    scores.allocate(seats, WIDTH, "cpu")
    scores.keep(organized, *drafting(seed, batch, 3, 3).lists(), width)
    return scores


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_the_buffer_holds_the_scores_of_what_was_chosen(batch: int) -> None:
    expected = drafting(3, batch, 3, 3).drafted(WIDTH).path_prob
    assert torch.equal(kept(4, batch).last(batch), expected)


def test_what_was_chosen_passes_through() -> None:
    lists = drafting(3, 2, 3, 3).lists()
    scores, before = Scores(), organized(*lists, WIDTH)
    scores.allocate(4, WIDTH, "cpu")
    after = scores.keep(organized, *lists, WIDTH)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_each_draft_fills_the_same_buffer() -> None:
    scores = kept(4, 2)
    place = scores.last(2).data_ptr()
    scores.keep(organized, *drafting(8, 2, 3, 3).lists(), WIDTH)
    assert scores.last(2).data_ptr() == place
    expected = drafting(8, 2, 3, 3).drafted(WIDTH).path_prob
    assert torch.equal(scores.last(2), expected)


@pytest.mark.parametrize(("batch", "width"), [(5, WIDTH), (2, WIDTH - 1)])
def test_what_does_not_fit_is_let_through(batch: int, width: int) -> None:
    assert not kept(4, batch, width).last(4).any()


def test_nothing_is_kept_before_there_is_room() -> None:
    chosen = Scores().keep(organized, *drafting(3, 2, 3, 3).lists(), WIDTH)
    assert chosen[1].shape == (2, WIDTH - 1)


LAYERS, TOKENS, TOP_K = [5, 2, 9], 6, 2


@pytest.fixture
def router() -> Router:
    """A router with room for six tokens."""
    made = Router()
    made.allocate(LAYERS, TOKENS, TOP_K, "cpu")
    return made


def routed(ids: torch.Tensor) -> Any:
    """What SGLang's `select_experts` returns."""
    weights = torch.full(ids.shape, 0.25)
    return SimpleNamespace(topk_ids=ids.to(torch.int32), topk_weights=weights)


def select(router: Router, layer: int | None, tokens: int = TOKENS) -> Any:
    """The hook around a router that picks experts 10 and up by layer."""
    ids = torch.arange(tokens * TOP_K).view(tokens, TOP_K) + 10 * (layer or 0)
    return router.select(lambda *args, **kwargs: routed(ids), "hidden", layer_id=layer)


def forced() -> torch.Tensor:
    """Routes [layers, tokens, k] that no router would pick."""
    return 1000 + torch.arange(len(LAYERS) * TOKENS * TOP_K).view(-1, TOKENS, TOP_K)


def test_an_idle_router_changes_nothing(router: Router) -> None:
    out = select(router, 5)
    assert out.topk_ids[0].tolist() == [50, 51]
    assert bool((out.topk_weights == 0.25).all())
    assert not router.routes(TOKENS).any()


def test_what_ran_is_recorded_in_order_of_layers(router: Router) -> None:
    router.recording = True
    for layer in LAYERS:
        select(router, layer)
    assert router.routes(TOKENS)[:, 0, 0].tolist() == [20, 50, 90]
    assert router.routes(4).shape == (3, 4, TOP_K)


def test_forced_routes_replace_the_routers_own(router: Router) -> None:
    router.forcing = True
    router.force(forced())
    outs = {layer: select(router, layer) for layer in LAYERS}
    found = torch.stack([outs[layer].topk_ids for layer in sorted(LAYERS)])
    assert torch.equal(found, forced().to(torch.int32))
    assert all(bool((out.topk_weights == 0.5).all()) for out in outs.values())


def test_forced_routes_are_what_is_recorded(router: Router) -> None:
    router.forcing = router.recording = True
    router.force(forced())
    for layer in LAYERS:
        select(router, layer, tokens=4)
    assert torch.equal(router.routes(4), forced()[:, :4].to(torch.int32))


def test_routes_can_be_forced_for_fewer_tokens(router: Router) -> None:
    router.forcing = True
    router.force(forced()[:, :2])
    assert torch.equal(select(router, 2, tokens=2).topk_ids, forced()[0, :2].int())


def test_a_layer_too_many_is_refused(router: Router) -> None:
    with pytest.raises(ValueError, match="zip"):
        router.force(forced()[:2])


@pytest.mark.parametrize(("layer", "tokens"), [(7, 6), (None, 6), (5, 7)])
def test_what_has_no_buffer_is_let_through(
    router: Router, layer: int | None, tokens: int
) -> None:
    router.forcing = router.recording = True
    router.force(forced())
    assert select(router, layer, tokens).topk_ids[0, 0] == 10 * (layer or 0)
    assert not router.routes(TOKENS).any()


def test_buffers_stay_where_they_are(router: Router) -> None:
    router.forcing = router.recording = True
    before = [b[5].data_ptr() for b in (router.forced, router.recorded)]
    router.force(forced())
    select(router, 5)
    assert [b[5].data_ptr() for b in (router.forced, router.recorded)] == before
