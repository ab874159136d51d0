"""What the plug-in reads of SGLang, and the servers that it refuses."""

import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evict_profile.errors import ConfigError, DataError
from evict_profile.integrations import matching
from evict_profile.integrations.sglang import compat
from evict_profile.integrations.sglang.compat import (
    SUPPORTED,
    attention_backend,
    check_routes,
    check_server,
    experts,
    installed,
    load_matching_table,
    moe_backend,
    observed_key,
    option,
    overridden,
)
from evict_profile.records import replace, to_mapping
from evict_profile.table import CostTable, Key
from tests.integrations.sglang.server import Graphs, ModelRunner

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        *((version, "") for version in SUPPORTED),
        *(
            (version, f"SGLang {version} is not supported; install one of 0.5.16, 0.5.")
            for version in ("0.5.15", "0.5.17", "0.5.24", "0.5.20.post1")
        ),
        (None, "not installed in .*; .*\\[sglang"),
    ],
)
def test_versions_that_were_tried_are_accepted(version, refused, monkeypatch):
    def found(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        assert installed() == version


class OldArguments:
    """`ServerArgs` of 0.5.16, which holds the resolved options itself."""

    def __init__(self):
        self.tp_size, self.page_size = 1, 1

    def override(self, source, **values):
        vars(self).update(values)


@pytest.fixture(params=["context", "arguments"])
def arguments(request, sglang, monkeypatch):
    if request.param == "context":
        sglang.options["page_size"] = 1
        return SimpleNamespace(tp_size="asked for, not resolved")
    module = sys.modules["sglang.srt.runtime_context"]
    monkeypatch.setattr(module, "get_context", SimpleNamespace)
    return OldArguments()


def test_overrides_of_resolved_options_last_as_long_as_the_block(arguments):
    with overridden(arguments, tp_size=2, page_size=8):
        assert option(arguments, "tp_size") == 2
        assert option(arguments, "page_size") == 8
    assert (option(arguments, "tp_size"), option(arguments, "page_size")) == (1, 1)
    with pytest.raises(KeyError), overridden(arguments, tp_size=2):
        raise KeyError
    assert option(arguments, "tp_size") == 1


@pytest.fixture
def runner(sglang):
    return ModelRunner()


def test_the_key_is_a_tables_without_its_model(runner, sglang):
    sglang.options |= {"tp_size": 2, "ep_size": 4}
    found = observed_key(runner)
    assert set(found) == set(Key.names()) - {"model"}
    assert (found["tp"], found["ep"]) == (2, 4)
    assert (found["engine"], found["engine_version"]) == ("sglang", "0.5.20")
    assert (found["dtype"], found["graph_mode"]) == ("bfloat16", "eager")
    assert found["gpu"].strip()
    runner.model_config.quantization = "fp8"
    runner.decode_cuda_graph_runner = Graphs(runner, runner.attn_backend, 3, 9)
    found = observed_key(runner)
    assert (found["dtype"], found["graph_mode"]) == ("fp8", "cuda-graph")
    runner.model[0].quant_method.weight_block_size = [128, 128]
    assert observed_key(runner)["dtype"] == "fp8_block"


@pytest.mark.parametrize(
    ("version", "name"), [(3, "-fa3"), (4, "-fa4"), (None, ""), ("none", "")]
)
def test_attention_is_named_with_its_kernels_version(runner, version, name):
    if version != "none":
        runner.attn_backend.fa_impl_ver = version
    assert attention_backend(runner) == f"IntelAMXAttnBackend{name}"


class UnquantizedMethod:
    runner: Any = None


@pytest.mark.parametrize(
    ("device", "backend", "kernel"),
    [
        ("cuda", "triton", "triton"),
        ("cuda:1", "deep_gemm", "deep_gemm"),
        ("cuda", None, "native"),
        ("cpu", "triton", "native"),
    ],
)
def test_experts_are_named_by_method_and_kernel(runner, device, backend, kernel):
    runner.device = device
    runner.model[0].quant_method = method = UnquantizedMethod()
    if backend:
        chosen = SimpleNamespace(value=backend)
        method.runner = SimpleNamespace(runner_backend=chosen)
    assert moe_backend(runner) == f"UnquantizedMethod-{kernel}"


def test_experts_come_in_order_of_layers(runner):
    runner.model.append(torch.nn.Linear(1, 1))
    assert [layer.layer_id for layer in experts(runner.model)] == [0, 1, 2]
    dense = ModelRunner(layers=0)
    assert (moe_backend(dense), list(experts(dense.model))) == ("none", [])


def test_fused_shared_experts_are_refused(worker, sglang):
    check_server(worker)
    worker.target_worker.model_runner.model[0].num_fused_shared_experts = 1
    with pytest.raises(ConfigError, match="--disable-shared-experts-fusion"):
        check_server(worker)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("pp_size", 2, "; use 1$"),
        ("dp_size", 4, "; use 1$"),
        ("page_size", 16, "; use 1$"),
        ("enable_dp_attention", True, "; turn it off$"),
        ("enable_two_batch_overlap", True, "; turn it off$"),
        ("speculative_adaptive", True, "; turn it off$"),
        ("speculative_use_rejection_sampling", True, "; turn it off$"),
        ("enable_return_routed_experts", True, "; turn it off$"),
        ("enable_lora", True, "; turn it off$"),
        ("speculative_accept_threshold_single", 0.9, "; use 1.0$"),
        ("speculative_accept_threshold_acc", 0.5, "; use 1.0$"),
        ("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND", "1", "drafter's cache; unset"),
        ("SGLANG_SIMULATE_ACC_LEN", "1", "no account of what was cut; unset"),
        # A verification is then planned beside the draft, at the full width.
        ("plan_stream", object(), "SGLANG_ENABLE_OVERLAP_PLAN_STREAM is set"),
    ],
)
def test_servers_that_were_not_tried_are_refused(
    worker, sglang, monkeypatch, name, value, says
):
    if hasattr(worker, name):
        setattr(worker, name, value)
    elif name.isupper():
        monkeypatch.setenv(name, "0")
        check_server(worker)
        monkeypatch.setenv(name, value)
    else:
        sglang.options[name] = value
        says = f"^{name} is {value}: .*{says}"
    with pytest.raises(ConfigError, match=says):
        check_server(worker)


@pytest.mark.parametrize("off", [False, None])
def test_options_that_are_off_or_absent_are_no_obstacle(worker, sglang, off):
    assert "enable_two_batch_overlap" not in sglang.options
    check_server(worker)
    sglang.options |= {name: each or off for name, (each, _) in compat.OPTIONS.items()}
    check_server(worker)


def test_backends_that_route_by_themselves_are_refused(worker, monkeypatch):
    monkeypatch.setattr(compat, "moe_backend", lambda runner: "Method-triton")
    check_routes(worker.runner)
    monkeypatch.setattr(compat, "moe_backend", lambda runner: "Method-triton_kernel")
    with pytest.raises(ConfigError, match="--moe-runner-backend triton"):
        check_routes(worker.runner)


@pytest.mark.parametrize(
    ("device", "backend", "known"),
    [
        ("cpu", "OtherAttnBackend", False),
        ("cpu", "FlashAttentionBackend", False),
        ("cuda", "FlashAttentionBackend", True),
        ("cuda:0", "FlashAttentionBackend", True),
        ("cuda", "OtherAttnBackend", False),
        ("cuda", "IntelAMXAttnBackend", False),
    ],
)
def test_attention_backends_are_known_by_device(worker, device, backend, known):
    worker.runner.device = device
    worker.runner.attn_backend = type(backend, (), {})()
    refused = pytest.raises(ConfigError, match=f"not cut with {backend} yet; use --att")
    with nullcontext() if known else refused:
        check_server(worker)


@pytest.fixture
def served(worker, monkeypatch, saved_table):
    key = to_mapping(CostTable.load(saved_table).key)
    monkeypatch.setattr(compat, "observed_key", lambda runner: key)
    for layer in worker.runner.model:
        layer.num_experts, layer.top_k = 32, 4
    return worker


@pytest.mark.parametrize(
    ("what", "value", "sentence"),
    [
        ("hidden_size", 640, "hidden size 512, and the server's has 640"),
        ("num_hidden_layers", 5, "layers 4, and the server's has 5"),
        ("vocab_size", 99, "vocabulary 2048, and the server's has 99"),
        ("num_experts", 64, "experts 32, and the server's has 64"),
        ("top_k", 8, "top-k 4, and the server's has 8"),
    ],
)
def test_the_table_of_the_servers_model_is_loaded_and_no_other(
    served, saved_table, what, value, sentence
):
    served.runner.model_config.model_path = "/my models/tiny"
    table = load_matching_table(saved_table, "", served)
    assert (table.key.model, table.caveats) == ("tiny", ())
    for holder in (served.runner.model_config, *served.runner.model):
        if hasattr(holder, what):
            setattr(holder, what, value)
    with pytest.raises(DataError, match=f"{sentence}; measure .* '/my models/tiny/c"):
        load_matching_table(saved_table, "", served)


def test_the_table_is_of_steps_that_extend_the_drafters_cache(served, workload_table):
    table = load_matching_table(workload_table, "", served)
    clock = table.drafting.at(1)
    assert clock.plain_fixed_us == clock.fixed_us == 40.0
    assert table.sha256 == CostTable.load(workload_table).sha256


@pytest.mark.parametrize(("topk", "warns"), [(4, False), (2, True)])
def test_drafting_of_another_shape_is_warned_of(
    served, full_table, caplog, monkeypatch, topk, warns
):
    made = full_table.provenance
    facts = {**made.fingerprint, "steps": served.speculative_num_steps, "topk": 4}
    table = replace(full_table, provenance=replace(made, fingerprint=facts))
    served.topk = topk
    monkeypatch.setattr(matching, "load_matching_table", lambda *asked: table)
    load_matching_table(Path("t.json"), "", served)
    assert ("time of drafting is of steps" in caplog.text) is warns
