"""What the plug-in reads of SGLang, and the servers that it refuses."""

import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.sglang import compat
from evict_profile.integrations.sglang.compat import (
    ON_CPU,
    SUPPORTED,
    attention_backend,
    check_hooks,
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
from evict_profile.records import replace
from evict_profile.runtime import CostTable
from evict_profile.table import COMPOSED, Composition, Key, Origin
from tests.integrations.sglang.server import (
    Context,
    Graphs,
    HookRegistry,
    ModelRunner,
    Worker,
)

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("version", SUPPORTED)
def test_known_versions_are_accepted(version: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert installed() == version
    assert set(ON_CPU) < set(SUPPORTED)


@pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.24", "0.5.20.post1"])
def test_other_versions_are_refused(version: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    named = r"0\.5\.16, 0\.5\.20, 0\.5\.21, 0\.5\.22, 0\.5\.23$"
    with pytest.raises(ConfigError, match=f"SGLang {version} is not .* one of {named}"):
        installed()


def test_an_environment_without_sglang_is_refused(monkeypatch: Patch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ConfigError, match=r"not installed here; .*\[sglang"):
        installed()


class OldArguments:
    """`ServerArgs` of 0.5.16, which holds the resolved options itself."""

    def __init__(self) -> None:
        self.tp_size, self.page_size = 1, 1

    def override(self, source: str, **values: Any) -> None:
        vars(self).update(values)


@pytest.fixture(params=["context", "arguments"])
def arguments(
    request: pytest.FixtureRequest, sglang: Context, monkeypatch: Patch
) -> Any:
    """Server arguments of both kinds of version."""
    if request.param == "context":
        sglang.options["page_size"] = 1
        return SimpleNamespace(tp_size="asked for, not resolved")
    module = sys.modules["sglang.srt.runtime_context"]
    monkeypatch.setattr(module, "get_context", SimpleNamespace)
    return OldArguments()


def test_overrides_of_resolved_options_last_as_long_as_the_block(
    arguments: Any,
) -> None:
    with overridden(arguments, tp_size=2, page_size=8):
        assert option(arguments, "tp_size") == 2
        assert option(arguments, "page_size") == 8
    assert (option(arguments, "tp_size"), option(arguments, "page_size")) == (1, 1)
    with pytest.raises(KeyError), overridden(arguments, tp_size=2):
        raise KeyError
    assert option(arguments, "tp_size") == 1


@pytest.fixture
def runner(sglang: Context) -> ModelRunner:
    """A model runner on a CPU."""
    return ModelRunner()


def test_the_key_is_a_tables_without_its_model(
    runner: ModelRunner, sglang: Context
) -> None:
    sglang.options |= {"tp_size": 2, "ep_size": 4}
    found = observed_key(runner)
    assert set(found) == set(Key.names()) - {"model"}
    assert (found["tp"], found["ep"]) == (2, 4)
    assert (found["engine"], found["engine_version"]) == ("sglang", "0.5.20")
    assert found["dtype"] == "bfloat16"
    assert found["gpu"].strip()


def test_graphs_are_in_the_key(runner: ModelRunner) -> None:
    assert observed_key(runner)["graph_mode"] == "eager"
    runner.decode_cuda_graph_runner = Graphs(runner, runner.attn_backend, 3, 9)
    assert observed_key(runner)["graph_mode"] == "cuda-graph"


@pytest.mark.parametrize(
    ("version", "name"), [(3, "-fa3"), (4, "-fa4"), (None, ""), ("none", "")]
)
def test_attention_is_named_with_its_kernels_version(
    runner: ModelRunner, version: Any, name: str
) -> None:
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
    ("device", "backend", "kernel"),
    [
        ("cuda", "triton", "triton"),
        ("cuda:1", "deep_gemm", "deep_gemm"),
        ("cuda", None, "native"),
        ("cpu", "triton", "native"),
    ],
)
def test_experts_are_named_by_method_and_kernel(
    runner: ModelRunner, device: str, backend: str | None, kernel: str
) -> None:
    """A CPU picks a kernel, and does not run it."""
    runner.device = device
    runner.model[0].quant_method = UnquantizedMethod(backend)
    assert moe_backend(runner) == f"UnquantizedMethod-{kernel}"


def test_experts_come_in_order_of_layers(runner: ModelRunner) -> None:
    runner.model.append(torch.nn.Linear(1, 1))
    assert [layer.layer_id for layer in experts(runner.model)] == [0, 1, 2]
    dense = ModelRunner(layers=0)
    assert (moe_backend(dense), list(experts(dense.model))) == ("none", [])


def test_a_hook_that_was_not_applied_is_refused(sglang: Context) -> None:
    HookRegistry._patched = {"a", "c", "d"}
    check_hooks(frozenset({"a", "c"}))
    with pytest.raises(ConfigError, match="did not apply the hook on b; see its log"):
        check_hooks(frozenset({"a", "b", "c"}))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("tp_size", 2, "use 1"),
        ("pp_size", 2, "use 1"),
        ("dp_size", 4, "use 1"),
        ("page_size", 16, "use 1"),
        ("enable_dp_attention", True, "turn it off"),
        ("enable_two_batch_overlap", True, "turn it off"),
        ("speculative_adaptive", True, "turn it off"),
        ("speculative_use_rejection_sampling", True, "turn it off"),
        ("enable_return_routed_experts", True, "turn it off"),
        ("enable_lora", True, "turn it off"),
        ("speculative_accept_threshold_single", 0.9, "use 1.0"),
        ("speculative_accept_threshold_acc", 0.5, "use 1.0"),
    ],
)
def test_options_that_were_not_tried_are_refused(
    worker: Worker, sglang: Context, name: str, value: Any, fix: str
) -> None:
    sglang.options[name] = value
    with pytest.raises(ConfigError, match=f"^{name} is {value}: .*; {fix}$"):
        check_server(worker)


@pytest.mark.parametrize("off", [False, None])
def test_options_that_are_off_or_absent_are_no_obstacle(
    worker: Worker, sglang: Context, off: bool | None
) -> None:
    assert "enable_two_batch_overlap" not in sglang.options
    check_server(worker)
    sglang.options |= {name: each or off for name, (each, _) in compat.OPTIONS.items()}
    check_server(worker)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND", "lose the drafter's cache; unset"),
        ("SGLANG_SIMULATE_ACC_LEN", "takes no account of what was cut; unset"),
    ],
)
def test_variables_that_would_spoil_it_are_refused(
    worker: Worker, monkeypatch: Patch, name: str, says: str
) -> None:
    monkeypatch.setenv(name, "0")
    check_server(worker)
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name} is set: .*{says}"):
        check_server(worker)


@pytest.mark.parametrize(
    ("backend", "seen"), [("triton", True), ("triton_kernel", False)]
)
def test_backends_that_route_by_themselves_are_refused(
    worker: Worker, monkeypatch: Patch, backend: str, seen: bool
) -> None:
    monkeypatch.setattr(compat, "moe_backend", lambda runner: f"Method-{backend}")
    refused = pytest.raises(ConfigError, match="--moe-runner-backend triton")
    with nullcontext() if seen else refused:
        check_routes(worker.runner)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        # SGLang makes no scores for a chain.
        ("topk", 1, "--speculative-eagle-topk 1.*use 2 or more"),
        # A verification is then planned beside the draft, at the full width.
        ("plan_stream", object(), "SGLANG_ENABLE_OVERLAP_PLAN_STREAM is set"),
    ],
)
def test_workers_that_cannot_be_cut_are_refused(
    worker: Worker, name: str, value: Any, says: str
) -> None:
    setattr(worker, name, value)
    with pytest.raises(ConfigError, match=says):
        check_server(worker)


def test_a_dense_model_is_refused(sglang: Context) -> None:
    with pytest.raises(ConfigError, match="no routed experts; unset EVICT_PROFILE_"):
        check_server(Worker(ModelRunner(layers=0)))


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
def test_attention_backends_are_known_by_device(
    worker: Worker, device: str, backend: str, known: bool
) -> None:
    worker.runner.device = device
    worker.runner.attn_backend = type(backend, (), {})()
    refused = pytest.raises(ConfigError, match=f"not cut with {backend} yet; use --att")
    with nullcontext() if known else refused:
        check_server(worker)


SERVED = {
    "gpu": "a test",
    "dtype": "bfloat16",
    "tp": 1,
    "ep": 1,
    "engine": "scripted",
    "engine_version": "1",
    "attention_backend": "none",
    "moe_backend": "none",
    "graph_mode": "eager",
}


@pytest.fixture
def served(worker: Worker, monkeypatch: Patch) -> Worker:
    """The server that the known run prices."""
    monkeypatch.setattr(compat, "observed_key", lambda runner: dict(SERVED))
    for layer in worker.runner.model:
        layer.num_experts, layer.top_k = 32, 4
    return worker


def test_the_table_of_the_server_is_loaded(served: Worker, saved_table: Path) -> None:
    found = load_matching_table(saved_table, "", served)
    assert found.sha256 == CostTable.load(saved_table).sha256
    assert (found.key.model, found.caveats) == ("tiny", ())


@pytest.mark.parametrize(("topk", "warns"), [(4, False), (2, True)])
def test_drafting_of_another_shape_is_warned_of(
    served: Worker, caplog: pytest.LogCaptureFixture, topk: int, warns: bool
) -> None:
    facts = {"steps": served.speculative_num_steps, "topk": 4}
    served.topk = topk
    document = {"drafting": {"batches": []}, "provenance": {"fingerprint": facts}}
    compat._warn_of_other_drafts(document, served)
    assert ("time of drafting is of steps" in caplog.text) is warns


@pytest.mark.parametrize("name", list(SERVED))
def test_another_engines_table_is_refused(
    served: Worker, saved_table: Path, monkeypatch: Patch, name: str
) -> None:
    other = {**SERVED, name: "other"}
    monkeypatch.setattr(compat, "observed_key", lambda runner: other)
    with pytest.raises(TableError, match=f"prices another engine .{name}: other here"):
        load_matching_table(saved_table, "", served)


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
def test_another_models_table_is_refused(
    served: Worker, saved_table: Path, what: str, value: int, sentence: str
) -> None:
    for holder in (served.runner.model_config, *served.runner.model):
        if hasattr(holder, what):
            setattr(holder, what, value)
    with pytest.raises(ConfigError, match=f"prices a model with {sentence}; measure"):
        load_matching_table(saved_table, "", served)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"model": {"moe": {}}}'])
def test_a_file_that_is_no_table_is_refused(
    served: Worker, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises((ConfigError, TableError), match=r"table\.json: "):
        load_matching_table(path, "", served)


@pytest.fixture
def composed_table(saved_table: Path, tmp_path: Path) -> Path:
    """The known run's prices, as if they had been composed."""
    table = CostTable.load(saved_table)
    made = {name: getattr(table.provenance, name) for name in Origin.__struct_fields__}
    origin = Composition(
        **made,
        package="a package 1",
        licence="",
        attribution="",
        files={},
        rows_used=1,
        rows_dropped={},
        router="plain",
        l2_mb=50.0,
        stand_ins={},
        unpriced=(),
        fixed_us=0.0,
        fixed_from="nobody told",
        error={"step": 0.2, "growth": 0.1},
    )
    key = replace(table.key, graph_mode=COMPOSED, moe_backend="rows", dtype="fp8")
    path = tmp_path / "composed.json"
    replace(table, provenance=origin, key=key).save(path)
    return path


def test_a_composed_table_is_refused_unless_it_is_allowed(
    served: Worker, composed_table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TableError, match="set EVICT_PROFILE_ALLOW=composed"):
        load_matching_table(composed_table, "", served)
    table = load_matching_table(composed_table, "composed", served)
    assert table.origin == COMPOSED
    assert "composed from public rows, not measured" in caplog.text
    assert "composed from public rows" in table.price(1, 64).caveats[0]


@pytest.mark.parametrize("name", ["gpu", "tp"])
def test_a_composed_table_of_another_device_is_refused(
    served: Worker, composed_table: Path, monkeypatch: Patch, name: str
) -> None:
    monkeypatch.setattr(
        compat, "observed_key", lambda runner: {**SERVED, name: "other"}
    )
    with pytest.raises(TableError, match=f"{name}: other here"):
        load_matching_table(composed_table, "composed", served)


def test_a_measured_table_needs_no_allowance(served: Worker, saved_table: Path) -> None:
    assert load_matching_table(saved_table, "composed", served).origin == "measured"
