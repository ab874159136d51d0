"""The key is what runs, told apart where a table would be wrong."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evict_profile.integrations.sglang.observed import (
    attention_backend,
    device_name,
    experts,
    graph_mode,
    moe_backend,
    observed_key,
)
from evict_profile.runtime.table import KEY
from tests.integrations.sglang.server import Context, Graphs, ModelRunner


@pytest.fixture
def runner(sglang: Context) -> ModelRunner:
    """A model runner on a CPU."""
    return ModelRunner()


def test_the_key_is_a_tables_without_its_model(runner: ModelRunner) -> None:
    """Every other field, and no more."""
    assert set(observed_key(runner)) == set(KEY) - {"model"}


def test_the_key_says_what_was_resolved(runner: ModelRunner, sglang: Context) -> None:
    """Parallelism from the options, the version from what is installed."""
    sglang.options |= {"tp_size": 2, "ep_size": 4}
    found = observed_key(runner)
    assert (found["tp"], found["ep"]) == (2, 4)
    assert (found["engine"], found["engine_version"]) == ("sglang", "0.5.20")
    assert found["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("version", "name"), [(3, "-fa3"), (4, "-fa4"), (None, ""), ("none", "")]
)
def test_attention_is_named_with_its_kernels_version(
    runner: ModelRunner, version: Any, name: str
) -> None:
    """Where the backend has several."""
    if version != "none":
        runner.attn_backend.fa_impl_ver = version
    assert attention_backend(runner) == f"IntelAMXAttnBackend{name}"


class UnquantizedMethod:
    """How experts are held."""

    def __init__(self, backend: str | None) -> None:
        if backend:
            chosen = SimpleNamespace(value=backend)
            self.runner = SimpleNamespace(runner_backend=chosen)


@pytest.mark.parametrize(
    ("device", "backend", "name"),
    [
        ("cuda", "triton", "UnquantizedMethod-triton"),
        ("cuda:1", "deep_gemm", "UnquantizedMethod-deep_gemm"),
        ("cuda", None, "UnquantizedMethod-native"),
        ("cpu", "triton", "UnquantizedMethod-native"),
    ],
)
def test_experts_are_named_by_method_and_kernel(
    runner: ModelRunner, device: str, backend: str | None, name: str
) -> None:
    """A CPU picks a kernel, and does not run it."""
    runner.device = device
    runner.model[0].quant_method = UnquantizedMethod(backend)
    assert moe_backend(runner) == name


def test_a_dense_model_has_no_experts(sglang: Context) -> None:
    """And no kernel for them."""
    runner = ModelRunner(layers=0)
    assert (moe_backend(runner), list(experts(runner.model))) == ("none", [])


def test_experts_come_in_order_of_layers(runner: ModelRunner) -> None:
    """Only the modules that hold routed ones."""
    runner.model.append(torch.nn.Linear(1, 1))
    assert [layer.layer_id for layer in experts(runner.model)] == [0, 1, 2]


def test_graphs_are_seen(runner: ModelRunner) -> None:
    """By whether any were captured."""
    assert graph_mode(runner) == "eager"
    runner.decode_cuda_graph_runner = Graphs(runner, runner.attn_backend, 3, 9)
    assert graph_mode(runner) == "cuda-graph"


def test_a_cpu_has_a_name(runner: ModelRunner) -> None:
    """Of its model, as a table's key has it."""
    assert device_name(runner).strip()
