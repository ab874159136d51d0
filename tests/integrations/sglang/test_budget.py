"""Expert budgets around SGLang's router: the hook alone, and with the real router."""

import dataclasses
import functools
import importlib.util
import inspect
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang import budget as module
from evict_profile.integrations.sglang.budget import BudgetHook, ExpertBudget, refusal
from evict_profile.runtime.budget import MODES, route

EXPERTS, TOP_K, BUDGET, TOKENS = 16, 4, 6, 10
SGLANG = importlib.util.find_spec("sglang") is not None
with_sglang = pytest.mark.skipif(not SGLANG, reason="sglang is not installed here")


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


def logits(seed: int = 0) -> torch.Tensor:
    """Router logits of some tokens."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(TOKENS, EXPERTS, generator=generator)


def hook(mode: str = "substitution", active: bool = True) -> BudgetHook:
    """A hook, as it stands within a verification."""
    made = BudgetHook(ExpertBudget(BUDGET, mode))
    made.active = active
    return made


def given(
    made: BudgetHook, config: Any, router_logits: Any = None, **kwargs: Any
) -> Any:
    """The configuration that SGLang's router is given."""
    return made.budgeted(
        lambda hidden, router, config, **kwargs: config,
        hidden_states=torch.zeros(TOKENS, 1),
        router_logits=logits() if router_logits is None else router_logits,
        topk_config=config,
        layer_id=0,
        **kwargs,
    )


def routed(made: BudgetHook) -> Any:
    """What its routing function makes of the tokens."""
    return given(made, Config()).custom_routing_function(
        hidden_states=None, gating_output=logits(), topk=TOP_K, renormalize=False
    )


def test_outside_verifications_nothing_changes():
    config = Config()
    assert given(hook(active=False), config) is config


def test_a_verification_gets_a_routing_function():
    weights, ids = routed(hook())
    assert ids.unique().numel() <= BUDGET
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert weights.is_contiguous() and ids.is_contiguous()


def test_a_token_without_weight_buys_no_expert():
    made = hook()
    made.node_weights = torch.zeros(TOKENS)
    made.node_weights[3] = 0.5
    _, ids = routed(made)
    own = logits()[3].topk(TOP_K).indices
    assert set(ids[3].tolist()) == set(own.tolist())


def test_an_expert_that_no_token_runs_is_not_ranked():
    made, own = hook(), logits().topk(TOP_K).indices
    for first, second in itertools.combinations(range(TOKENS), 2):
        if own[[first, second]].unique().numel() > BUDGET:
            continue
        made.node_weights = torch.zeros(TOKENS)
        made.node_weights[[first, second]] = 1.0
        _, ids = routed(made)
        for token in (first, second):
            assert set(ids[token].tolist()) == set(own[token].tolist())


@pytest.mark.parametrize(("tokens", "budget"), [(1, 4), (3, 12), (TOKENS, EXPERTS)])
def test_where_nothing_gives_way_sglang_routes_itself(tokens, budget):
    made, config = BudgetHook(ExpertBudget(budget)), Config()
    made.active = True
    assert given(made, config, logits()[:tokens]) is config
    if budget < EXPERTS:
        assert given(made, config, logits()[: tokens + 1]) is not config


REFUSED = {
    "groups": {"use_grouped_topk": True},
    "biased": {"correction_bias": torch.zeros(EXPERTS)},
    "own": {"custom_routing_function": print},
    "shared": {"num_fused_shared_experts": 1},
    "sqrtsoftplus": {"scoring_func": "sqrtsoftplus"},
    "plain sigmoid": {"scoring_func": "sigmoid", "renormalize": False},
    "scales": {"apply_routed_scaling_factor_on_output": True},
    "format": {"output_format": SimpleNamespace(name="BYPASSED")},
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_not_understood_is_refused(word):
    assert word in refusal(Config(**REFUSED[word]))


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(renormalize=False),
        Config(scoring_func="sigmoid"),
        Config(output_format=SimpleNamespace(name="STANDARD")),
    ],
)
def test_what_is_understood_is_not(config):
    assert refusal(config) is None


def test_a_refused_router_is_left_alone_and_named_once(caplog):
    made, config = hook(), Config(use_grouped_topk=True)
    with caplog.at_level(logging.WARNING):
        assert given(made, config) is config
        assert given(made, config) is config
    assert "groups" in made.refused
    assert len(caplog.records) == 1


def test_a_call_with_more_than_is_known_is_left_alone():
    config = Config()
    assert given(hook(), config, dynamic_expert_bias=None) is not config
    made = hook()
    assert given(made, config, expert_location_dispatch_info=object()) is config
    assert "expert_location_dispatch_info" in made.refused


def test_rows_that_are_not_the_batch_s_are_left_alone():
    """As where ranks gather their tokens: who is padding is then unknown."""
    made, config = hook(), Config()
    made.node_weights = torch.ones(TOKENS - 1)
    assert given(made, config) is config
    assert "10 rows for 9 tokens" in made.refused


def batch(verifies: bool) -> SimpleNamespace:
    """A forward's batch, whose last row is padding."""
    mode = SimpleNamespace(is_target_verify=lambda: verifies)
    return SimpleNamespace(forward_mode=mode, out_cache_loc=torch.tensor([7, 9, 0]))


@pytest.fixture
def followed(monkeypatch):
    """A hook that follows a model, and what it was in the model's forwards."""
    monkeypatch.setattr(module, "check_model", lambda runner, budget: None)
    made, seen = hook(active=False), []

    def forward(input_ids, positions, forward_batch):
        seen.append((made.active, made.node_weights))
        if input_ids is None:
            raise ValueError

    model = SimpleNamespace(forward=forward)
    made.allocate(8, "cpu")
    made.follow(SimpleNamespace(model=model))
    with made.kept():
        yield made, model, seen


def test_a_servers_own_graphs_are_not_budgeted(followed):
    made, model, seen = followed
    made._kept = False
    model.forward(0, 0, batch(verifies=True))
    assert seen == [(False, None)]


def test_only_verifications_are_budgeted(followed):
    made, model, seen = followed
    model.forward(0, 0, batch(verifies=True))
    model.forward(0, 0, forward_batch=batch(verifies=False))
    assert [active for active, _ in seen] == [True, False]
    assert not made.active


def test_padding_rows_of_a_graph_have_no_say(followed):
    """They are those that write to SGLang's dummy slot."""
    made, model, seen = followed
    model.forward(0, 0, batch(verifies=True))
    assert seen[0][1].tolist() == [1.0, 1.0, 0.0]
    assert made.node_weights is None


def test_tokens_count_as_the_square_root_of_their_path_probability(followed):
    made, model, seen = followed
    made.weigh(torch.tensor([[0.25], [0.01]]))
    four = batch(verifies=True)
    four.out_cache_loc = torch.tensor([3, 4, 5, 6])
    model.forward(0, 0, four)
    torch.testing.assert_close(seen[0][1], torch.tensor([1.0, 0.5, 1.0, 0.1]))


def test_roots_alone_count_in_full(followed):
    made, model, seen = followed
    made.weigh(torch.tensor([[0.25, 0.25, 0.25]]))
    made.weigh(torch.empty(3, 0))
    model.forward(0, 0, batch(verifies=True))
    assert seen[0][1].tolist() == [1.0, 1.0, 0.0]


def test_a_verification_that_fails_leaves_nothing_behind(followed):
    made, model, _ = followed
    with pytest.raises(ValueError):
        model.forward(None, 0, batch(verifies=True))
    assert not made.active


def test_following_says_that_it_is_lossy(followed, caplog):
    made, model, _ = followed
    with caplog.at_level(logging.WARNING):
        made.follow(SimpleNamespace(model=model))
    assert "expert budget of 6 (substitution)" in caplog.text
    assert "LOSSY" in caplog.text
    assert "forward_batch" in inspect.signature(model.forward).parameters


def real_config(**changes: Any) -> Any:
    """SGLang's own, as `TopK.forward_native` leaves it."""
    from sglang.srt.layers.moe.topk import TopKConfig

    return TopKConfig(top_k=TOP_K, torch_native=True, **changes)


def real(made: BudgetHook, config: Any, router_logits: torch.Tensor) -> Any:
    """What SGLang's own `select_experts` gives behind the hook."""
    from sglang.srt.layers.moe.topk import select_experts

    return functools.partial(made.budgeted, select_experts)(
        hidden_states=torch.zeros(TOKENS, 8),
        router_logits=router_logits,
        topk_config=config,
        layer_id=0,
    )


@with_sglang
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_the_real_router_keeps_to_the_budget(mode, renormalise):
    out = real(hook(mode), real_config(renormalize=renormalise), logits())
    expected = route(
        logits().softmax(1),
        TOP_K,
        BUDGET,
        renormalise=renormalise,
        mode=mode,
        ranking="top-k",
    )
    assert out.topk_ids.unique().numel() <= BUDGET
    assert torch.equal(out.topk_ids.long(), expected.topk_ids)
    torch.testing.assert_close(out.topk_weights, expected.topk_weights)


@with_sglang
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("mode", MODES)
def test_a_budget_of_all_experts_is_the_real_router(mode, scoring, dtype, monkeypatch):
    """Same experts and weights, where no two logits are equal; were it asked at all."""
    monkeypatch.setattr(ExpertBudget, "binds", lambda *asked: True)
    distinct = torch.stack(
        [
            torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(i)) / 4
            for i in range(TOKENS)
        ]
    ).to(dtype)
    config = real_config(scoring_func=scoring)
    made = BudgetHook(ExpertBudget(EXPERTS, mode))
    natural = real(made, config, distinct)
    made.active = True
    budgeted = real(made, config, distinct)
    order = natural.topk_ids.sort(dim=1).indices
    again = budgeted.topk_ids.sort(dim=1).indices
    assert torch.equal(
        budgeted.topk_ids.gather(1, again).long(),
        natural.topk_ids.gather(1, order).long(),
    )
    torch.testing.assert_close(
        budgeted.topk_weights.gather(1, again).float(),
        natural.topk_weights.gather(1, order).float(),
        rtol=1e-2 if dtype == torch.bfloat16 else 1e-5,
        atol=1e-6,
    )
    assert made.refused is None


@with_sglang
def test_the_real_configuration_can_be_read():
    assert refusal(real_config()) is None
    assert refusal(real_config(correction_bias=torch.zeros(EXPERTS))) is not None
    grouped = real_config(use_grouped_topk=True, num_expert_group=4, topk_group=2)
    assert "groups" in refusal(grouped)


@with_sglang
def test_the_real_router_still_takes_what_the_hook_hands_on():
    from sglang.srt.layers.moe.topk import select_experts

    names = list(inspect.signature(select_experts).parameters)
    assert names[:3] == ["hidden_states", "router_logits", "topk_config"]
    assert "layer_id" in names


def model_runner(routers: int, layers: int, **changes: Any) -> Any:
    """A target of real routers and layers, as far as the check reads them."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.moe.topk import TopK

    router, layer = TopK.__new__(TopK), FusedMoE.__new__(FusedMoE)
    router.__dict__["topk_config"] = real_config(**changes)
    kernel = SimpleNamespace(runner_backend=SimpleNamespace(value="triton"))
    method = SimpleNamespace(runner=kernel)
    layer.__dict__.update(num_experts=EXPERTS, quant_method=method)
    modules = [router] * routers + [layer] * layers
    model = SimpleNamespace(modules=lambda: iter(modules))
    return SimpleNamespace(model=model, server_args=None, device="cuda")


@pytest.fixture
def options(monkeypatch):
    """SGLang's options, as the check reads them."""
    values = {"ep_size": 1}
    monkeypatch.setattr(module, "option", lambda args, name: values[name])
    return values


@with_sglang
def test_a_model_that_can_keep_it_passes(options):
    module.check_model(model_runner(2, 2), ExpertBudget(BUDGET))


@with_sglang
def test_a_model_that_cannot_is_refused_at_the_start(options):
    small, fits = ExpertBudget(TOP_K - 1), ExpertBudget(BUDGET)
    with pytest.raises(ConfigError, match="choose one from 4 to 16"):
        module.check_model(model_runner(1, 1), small)
    with pytest.raises(ConfigError, match="has 0 for 1 layers"):
        module.check_model(model_runner(0, 1), fits)
    bias = torch.zeros(EXPERTS)
    with pytest.raises(ConfigError, match="biased score"):
        module.check_model(model_runner(1, 1, correction_bias=bias), fits)


@with_sglang
def test_expert_parallelism_is_refused(options):
    options["ep_size"] = 2
    with pytest.raises(ConfigError, match="--ep-size 1"):
        module.check_model(model_runner(1, 1), ExpertBudget(BUDGET))


@with_sglang
def test_backends_that_do_not_ask_the_router_are_refused(options):
    runner = model_runner(1, 1)
    layer = list(runner.model.modules())[1]
    layer.quant_method.runner.runner_backend.value = "flashinfer_trtllm"
    with pytest.raises(ConfigError, match="--moe-runner-backend triton"):
        module.check_model(runner, ExpertBudget(BUDGET))
