"""Hooks around SGLang's router, which tests/sglang has itself: budgets and routes."""

import dataclasses
import inspect
import itertools
import logging
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from evict_profile.integrations.sglang import router as module
from evict_profile.integrations.sglang.router import BudgetHook, RouteBuffers, refusal
from tests.integrations.sglang.tape import Tape

EXPERTS, TOP_K, BUDGET, TOKENS = 16, 4, 6, 10


@dataclasses.dataclass
class Config:
    """What the hook reads of SGLang's `TopKConfig`."""

    top_k: int = TOP_K
    use_grouped_topk: bool = False
    renormalize: bool = True
    num_fused_shared_experts: int = 0
    custom_routing_function: Any = None
    correction_bias: Any = None
    apply_routed_scaling_factor_on_output: bool = False
    output_format: Any = None
    scoring_func: str = "softmax"


def logits(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(TOKENS, EXPERTS, generator=generator)


def hook(budget=BUDGET, tokens=TOKENS):
    made = BudgetHook(budget)
    made.node_weights = torch.ones(tokens)
    return made


def given(made, config, router_logits=None, **kwargs):
    return made.budgeted(
        lambda hidden, router, config, **kwargs: config,
        hidden_states=torch.zeros(TOKENS, 1),
        router_logits=logits() if router_logits is None else router_logits,
        topk_config=config,
        layer_id=0,
        **kwargs,
    )


def routed(made):
    return given(made, Config()).custom_routing_function(
        hidden_states=None, gating_output=logits(), topk=TOP_K, renormalize=False
    )


def test_outside_verifications_nothing_changes():
    config = Config()
    assert given(BudgetHook(BUDGET), config) is config


def test_a_verification_gets_a_routing_function():
    weights, ids = routed(hook())
    assert ids.unique().numel() <= BUDGET
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert weights.is_contiguous() and ids.is_contiguous()


def test_experts_are_ranked_by_the_tokens_that_count_and_run_them():
    made, own = hook(), logits().topk(TOP_K).indices
    for first, second in itertools.combinations_with_replacement(range(TOKENS), 2):
        if own[[first, second]].unique().numel() > BUDGET:
            continue
        made.node_weights = torch.zeros(TOKENS)
        made.node_weights[[first, second]] = 0.5
        _, ids = routed(made)
        for token in (first, second):
            assert set(ids[token].tolist()) == set(own[token].tolist())


@pytest.mark.parametrize(("tokens", "budget"), [(1, 4), (3, 12), (TOKENS, EXPERTS)])
def test_where_nothing_gives_way_sglang_routes_itself(tokens, budget):
    config = Config()
    assert given(hook(budget, tokens), config, logits()[:tokens]) is config
    if budget < EXPERTS:
        more = hook(budget, tokens + 1)
        assert given(more, config, logits()[: tokens + 1]) is not config


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, ""),
        ({"renormalize": False}, ""),
        ({"scoring_func": "sigmoid"}, ""),
        ({"output_format": SimpleNamespace(name="STANDARD")}, ""),
        ({"use_grouped_topk": True}, ""),
        ({"correction_bias": torch.zeros(EXPERTS)}, ""),
        ({"custom_routing_function": print}, "own"),
        ({"num_fused_shared_experts": 1}, "shared"),
        ({"scoring_func": "sqrtsoftplus"}, "sqrtsoftplus"),
        ({"apply_routed_scaling_factor_on_output": True}, ""),
        (
            {"apply_routed_scaling_factor_on_output": True, "renormalize": False},
            "scales",
        ),
        ({"output_format": SimpleNamespace(name="BYPASSED")}, "format"),
    ],
)
def test_what_is_not_understood_is_refused(config, says):
    found = refusal(Config(**config))
    assert says in found if says else found is None


@pytest.mark.parametrize(
    ("given_more", "tokens", "why"),
    [
        # Such as a placement of experts.
        ({"expert_location_dispatch_info": object()}, TOKENS, "expert_location_"),
        # As where ranks gather their tokens: who is padding is then unknown.
        ({}, TOKENS - 1, "10 rows for 9 tokens"),
    ],
)
def test_what_is_not_known_is_left_to_sglang_and_named_once(
    caplog, given_more, tokens, why
):
    made, config = hook(tokens=tokens), Config()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert given(made, config, **given_more) is config
    (said,) = caplog.messages
    assert why in said


def test_what_is_none_was_not_given():
    config = Config()
    assert given(hook(), config, dynamic_expert_bias=None) is not config


def batch(verifies):
    mode = SimpleNamespace(is_target_verify=lambda: verifies)
    return SimpleNamespace(forward_mode=mode, out_cache_loc=torch.tensor([7, 9, 0]))


@pytest.fixture
def followed(monkeypatch):
    """A hook that follows a model, and its weights in each of the model's forwards."""
    monkeypatch.setattr(module, "check_model", lambda runner, budget: None)
    monkeypatch.setattr(module, "experts", lambda model: ["a layer"])
    made, seen = BudgetHook(BUDGET), []

    def forward(input_ids, positions, forward_batch):
        seen.append(made.node_weights)
        if input_ids is None:
            raise ValueError

    model = SimpleNamespace(forward=forward)
    made.allocate(8, "cpu")
    made.attach(SimpleNamespace(model=model))
    return made, model, seen


def test_only_verifications_in_the_plug_ins_graphs_are_budgeted(followed):
    """Decoding and prefill are not; and padding rows, which write to SGLang's dummy
    slot, have no weight."""
    made, model, seen = followed
    with made.enabled():
        model.forward(0, 0, batch(verifies=True))
        model.forward(0, 0, forward_batch=batch(verifies=False))
        with pytest.raises(ValueError):
            model.forward(None, 0, batch(verifies=True))
    model.forward(0, 0, batch(verifies=True))
    assert [own is not None for own in seen] == [True, False, True, False]
    assert seen[0].tolist() == [1.0, 1.0, 0.0]


def test_nodes_count_as_the_square_root_of_their_path_probability(followed):
    made, model, seen = followed
    four = batch(verifies=True)
    four.out_cache_loc = torch.tensor([3, 4, 5, 6])
    with made.enabled():
        made.set_token_weights(torch.tensor([[0.25], [0.01]]))
        model.forward(0, 0, four)
        made.set_token_weights(torch.empty(3, 0))
        model.forward(0, 0, batch(verifies=True))
    torch.testing.assert_close(seen[0], torch.tensor([1.0, 0.5, 1.0, 0.1]))
    assert seen[1].tolist() == [1.0, 1.0, 0.0]


def test_following_says_that_it_is_lossy(followed, caplog):
    made, model, _ = followed
    with caplog.at_level(logging.WARNING):
        made.attach(SimpleNamespace(model=model))
    assert "expert budget of 6 in every verification: LOSSY" in caplog.text
    assert "forward_batch" in inspect.signature(model.forward).parameters


def test_a_layer_that_asks_no_router_is_named(followed, caplog):
    made, model, _ = followed
    with made.enabled(), caplog.at_level(logging.WARNING):
        model.forward(0, 0, batch(verifies=True))
    assert "0 of 1 layers asked their router" in caplog.text


LAYERS, ROWS, SLOTS = [5, 2, 9], 6, 2
FORCED = 1000 + torch.arange(len(LAYERS) * ROWS * SLOTS).view(-1, ROWS, SLOTS)
"""Routes [layers, tokens, k] that no router would pick."""


class TopK(NamedTuple):
    """What SGLang's router gives."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor | None = None


@pytest.fixture
def router():
    made = RouteBuffers()
    made.allocate(LAYERS, ROWS, SLOTS, "cpu")
    return made


def select(router, layer, tokens=ROWS, dtype=torch.int32):
    """The hook around a router that picks experts from 10 x layer on."""
    ids = torch.arange(tokens * SLOTS).view(tokens, SLOTS) + 10 * (layer or 0)
    out = TopK(torch.full(ids.shape, 0.25), ids.to(dtype))
    return router.select(lambda *args, **kwargs: out, "hidden", layer_id=layer)


def test_an_idle_router_changes_nothing(router):
    out = select(router, 5)
    assert out.topk_ids[0].tolist() == [50, 51]
    assert bool((out.topk_weights == 0.25).all())
    assert not router.routes(ROWS).any()


def test_routes_are_recorded_in_order_of_layers(router):
    router.recording = True
    for layer in LAYERS:
        select(router, layer)
    assert router.routes(ROWS)[:, 0, 0].tolist() == [20, 50, 90]
    assert router.routes(4).shape == (3, 4, SLOTS)


@pytest.mark.parametrize("tokens", [2, ROWS])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_forced_routes_replace_the_routers_own(router, tokens, dtype):
    """Recording or not; the weights stay, and the type is the router's."""
    router.forcing = router.recording = True
    router.force(FORCED[:, :tokens])
    outs = [select(router, layer, tokens, dtype) for layer in sorted(LAYERS)]
    found = torch.stack([out.topk_ids for out in outs])
    assert torch.equal(found, FORCED[:, :tokens].to(dtype))
    assert torch.equal(router.routes(tokens), found.int())
    assert all(bool((out.topk_weights == 0.25).all()) for out in outs)


def test_a_graph_that_forces_launches_no_more_than_one_that_does_not(router):
    """Kernels read the buffer, which is filled before each replay."""
    router.forcing = router.recording = True
    own = TopK(torch.ones(ROWS, SLOTS), torch.ones(ROWS, SLOTS, dtype=torch.int32))
    with Tape() as graph:
        outs = [router.select(lambda **_: own, layer_id=layer) for layer in LAYERS]
        kernels = [out.topk_ids + 1 for out in outs]
    assert len(graph.launches) == len(kernels)
    router.forcing = router.recording = False
    router.force(FORCED)
    graph.replay()
    for layer, read in zip(LAYERS, kernels, strict=True):
        assert torch.equal(read, FORCED[sorted(LAYERS).index(layer)].int() + 1)


def test_layers_that_ask_no_router_are_known(router):
    """As of a backend that routes in a kernel of its own: nothing forces it."""
    select(router, 5)
    assert router.unforced(ROWS) == LAYERS
    router.forcing = True
    select(router, 5)
    select(router, 2, ROWS - 1)
    assert router.unforced(ROWS) == [2, 9]


def test_routes_of_other_layers_are_refused(router):
    with pytest.raises(ValueError, match="zip"):
        router.force(FORCED[:2])


@pytest.mark.parametrize(("layer", "tokens"), [(7, 6), (None, 6), (5, 7)])
def test_calls_without_a_buffer_pass_through(router, layer, tokens):
    router.forcing = router.recording = True
    router.force(FORCED)
    assert select(router, layer, tokens).topk_ids[0, 0] == 10 * (layer or 0)
    assert torch.equal(router.routes(ROWS), FORCED.int())
