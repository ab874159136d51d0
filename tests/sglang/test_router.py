"""Expert budgets around SGLang's own router, and the models that can keep to them."""

import functools
from types import SimpleNamespace

import pytest
import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang import router as module
from evict_profile.integrations.sglang.router import BudgetHook, RouteBuffers, refusal
from evict_profile.runtime.budget import route
from tests.integrations.sglang.tape import Tape

EXPERTS, TOP_K, BUDGET, TOKENS = 16, 4, 6, 10


def logits():
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(TOKENS, EXPERTS, generator=generator)


def real_config(**changes):
    from sglang.srt.layers.moe.topk import TopKConfig

    return TopKConfig(top_k=TOP_K, torch_native=True, **changes)


def one_shared():
    """A shared expert in the top k, as the version states it."""
    try:
        from sglang.srt.configs.shared_experts import SharedExpertsConfig
    except ModuleNotFoundError:
        return {"num_fused_shared_experts": 1}
    return {"shared_experts": SharedExpertsConfig(num_fused_shared_experts=1)}


def real(made, config, router_logits):
    from sglang.srt.layers.moe.topk import select_experts

    return functools.partial(made.budgeted, select_experts)(
        hidden_states=torch.zeros(TOKENS, 8),
        router_logits=router_logits,
        topk_config=config,
        layer_id=0,
    )


@pytest.mark.parametrize("renormalise", [True, False])
def test_the_real_router_keeps_to_the_budget(renormalise):
    made = BudgetHook(BUDGET)
    made.node_weights = torch.ones(TOKENS)
    out = real(made, real_config(renormalize=renormalise), logits())
    expected = route(
        logits().softmax(1), TOP_K, BUDGET, renormalise=renormalise, ranking="top-k"
    )
    assert out.topk_ids.unique().numel() <= BUDGET
    assert torch.equal(out.topk_ids.long(), expected.topk_ids)
    torch.testing.assert_close(out.topk_weights, expected.topk_weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_budget_of_all_experts_is_the_real_router(
    scoring, dtype, monkeypatch, caplog
):
    """Same experts and weights, where no two logits are equal; were it asked at all."""
    monkeypatch.setattr(module, "holds_all", lambda *asked: False)
    distinct = torch.stack(
        [
            torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(i)) / 4
            for i in range(TOKENS)
        ]
    ).to(dtype)
    config = real_config(scoring_func=scoring)
    made = BudgetHook(EXPERTS)
    natural = real(made, config, distinct)
    made.node_weights = torch.ones(TOKENS)
    budgeted = real(made, config, distinct)
    weights = [gates(natural), gates(budgeted)]
    rtol = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert torch.equal(weights[0] > 0, weights[1] > 0)
    torch.testing.assert_close(*weights, rtol=rtol, atol=1e-6)
    assert not caplog.messages


def biased():
    """Large enough that picks by biased scores are not those by plain ones."""
    return torch.linspace(-0.6, 0.6, EXPERTS)


GROUPED = {"use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2}
ROUTERS = {
    "DeepSeek-V3": GROUPED | {"correction_bias": biased()},
    "GLM-4.5": GROUPED
    | {"num_expert_group": 1, "topk_group": 1, "correction_bias": biased()},
    "DeepSeek-V2": GROUPED | {"renormalize": False},
    "biased softmax": {"correction_bias": biased() / 10},
    "biased sigmoid": {"correction_bias": biased(), "scoring_func": "sigmoid"},
    "sigmoid": {"renormalize": False, "scoring_func": "sigmoid"},
}


def gates(out):
    """The weight of each expert for each token; 0 where it does not run."""
    ids, weights = out.topk_ids.long(), out.topk_weights.float()
    return torch.zeros(TOKENS, EXPERTS).scatter(1, ids, weights)


routers = pytest.mark.parametrize("name", ROUTERS)


@routers
def test_all_experts_of_a_biased_or_grouped_router_are_the_real_router(
    name, monkeypatch
):
    monkeypatch.setattr(module, "holds_all", lambda *asked: False)
    config = real_config(**ROUTERS[name])
    assert refusal(config) is None
    made = BudgetHook(EXPERTS)
    natural = gates(real(made, config, logits()))
    made.node_weights = torch.ones(TOKENS)
    torch.testing.assert_close(gates(real(made, config, logits())), natural)


@routers
def test_a_biased_or_grouped_router_keeps_to_the_budget(name):
    """All tokens run k experts, and those of the real router where these are kept."""
    config = real_config(**ROUTERS[name])
    made = BudgetHook(BUDGET)
    natural = gates(real(made, config, logits())) > 0
    made.node_weights = torch.ones(TOKENS)
    within = gates(real(made, config, logits())) > 0
    kept = within.any(dim=0)
    assert natural.any(dim=0).sum() > BUDGET >= kept.sum()
    assert (within.sum(dim=1) == TOP_K).all()
    assert (within | ~(natural & kept)).all()


def test_weights_are_scaled_where_the_real_router_scales_them(monkeypatch):
    monkeypatch.setattr(module, "holds_all", lambda *asked: False)
    scaled = {
        "routed_scaling_factor": 2.5,
        "apply_routed_scaling_factor_on_output": True,
    }
    config = real_config(**ROUTERS["DeepSeek-V3"], **scaled)
    made = BudgetHook(EXPERTS)
    natural = gates(real(made, config, logits()))
    assert natural.sum(dim=1) == pytest.approx(2.5)
    made.node_weights = torch.ones(TOKENS)
    torch.testing.assert_close(gates(real(made, config, logits())), natural)


def test_the_real_configuration_can_be_read():
    assert refusal(real_config()) is None
    unscaled = {"renormalize": False, "apply_routed_scaling_factor_on_output": True}
    assert "does not renormalise" in refusal(real_config(**unscaled))
    assert "sqrtsoftplus" in refusal(real_config(scoring_func="sqrtsoftplus"))
    assert "shared experts" in refusal(real_config(**one_shared()))


def model_runner(routers, layers, **changes):
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
    values = {"ep_size": 1}
    monkeypatch.setattr(module, "option", lambda args, name: values[name])
    return values


def test_a_model_that_cannot_keep_it_is_refused_at_the_start(options):
    module.check_model(model_runner(2, 2), BUDGET)
    with pytest.raises(ConfigError, match="choose one from 4 to 16"):
        module.check_model(model_runner(1, 1), TOP_K - 1)
    with pytest.raises(ConfigError, match="has 0 for 1 layers"):
        module.check_model(model_runner(0, 1), BUDGET)
    with pytest.raises(ConfigError, match="shared experts"):
        module.check_model(model_runner(1, 1, **one_shared()), BUDGET)


def test_layers_that_do_not_ask_their_router_are_named_once(options, caplog):
    """A model may route by a fused kernel of its own, out of reach of the hook."""
    made, runner = BudgetHook(BUDGET), model_runner(1, 1)
    runner.model.forward = lambda ids, positions, batch: None
    made.attach(runner)
    made.allocate(TOKENS, "cpu")
    mode = SimpleNamespace(is_target_verify=lambda: True)
    batch = SimpleNamespace(forward_mode=mode, out_cache_loc=torch.ones(TOKENS))
    caplog.clear()
    with made.enabled():
        for _ in range(2):
            runner.model.forward(None, None, batch)
    assert [each.message for each in caplog.records] == [
        f"evict-profile: expert budget of {BUDGET} not kept: 0 of 1 layers asked their "
        "router"
    ]


def test_expert_parallelism_is_refused(options):
    options["ep_size"] = 2
    with pytest.raises(ConfigError, match="--ep-size 1"):
        module.check_model(model_runner(1, 1), BUDGET)


def test_backends_that_do_not_ask_the_router_are_refused(options):
    runner = model_runner(1, 1)
    layer = list(runner.model.modules())[1]
    layer.quant_method.runner.runner_backend.value = "flashinfer_trtllm"
    with pytest.raises(ConfigError, match="--moe-runner-backend triton"):
        module.check_model(runner, BUDGET)


def test_forcing_the_real_router_launches_nothing():
    """The MoE kernels then read the buffer itself, of the type that routers give on a
    GPU."""
    from sglang.srt.layers.moe.topk import select_experts

    def as_on_a_gpu(**asked):
        out = select_experts(**asked)
        return out._replace(topk_ids=out.topk_ids.int())

    made, launches = RouteBuffers(), []
    made.allocate([0], TOKENS, TOP_K, "cpu")
    asked = {"hidden_states": torch.zeros(TOKENS, 8), "router_logits": logits()}
    asked |= {"topk_config": real_config(), "layer_id": 0}
    for made.forcing in (False, True):
        with Tape() as tape:
            out = made.select(as_on_a_gpu, **asked)
        launches.append([each[0] for each in tape.launches])
    assert launches[0] == launches[1]
    assert out.topk_ids.data_ptr() == made.ids[0].data_ptr()
