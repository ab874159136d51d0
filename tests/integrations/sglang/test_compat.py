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
    check_server,
    device_name,
    experts,
    graph_mode,
    installed,
    load_matching_table,
    moe_backend,
    observed_key,
    option,
    overridden,
)
from evict_profile.runtime import CostTable
from evict_profile.table import Key
from tests.integrations.sglang.server import (
    Context,
    Graphs,
    HookRegistry,
    ModelRunner,
    Worker,
)


@pytest.mark.parametrize("version", SUPPORTED)
def test_known_versions_are_accepted(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And said."""
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert installed() == version


@pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.24", "0.5.20.post1"])
def test_other_versions_are_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those that can be installed."""
    monkeypatch.setattr(metadata, "version", lambda name: version)
    named = r"0\.5\.16, 0\.5\.20, 0\.5\.21, 0\.5\.22, 0\.5\.23$"
    with pytest.raises(ConfigError, match=f"SGLang {version} is not .* one of {named}"):
        installed()


def test_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how to install it."""

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(
        ConfigError, match=r"not installed here; pip install .*\[sglang"
    ):
        installed()


def test_what_runs_on_a_cpu_is_supported() -> None:
    """The tests' engines are users' engines."""
    assert set(ON_CPU) < set(SUPPORTED)


class OldArguments:
    """`ServerArgs` of 0.5.16, which holds the resolved options itself."""

    def __init__(self) -> None:
        self.tp_size, self.page_size = 1, 1

    def override(self, source: str, **values: Any) -> None:
        """Change some."""
        vars(self).update(values)


@pytest.fixture(params=["context", "arguments"])
def arguments(
    request: pytest.FixtureRequest, sglang: Context, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Server arguments of both kinds of version."""
    if request.param == "context":
        sglang.options["page_size"] = 1
        return SimpleNamespace(tp_size="asked for, not resolved")
    module = sys.modules["sglang.srt.runtime_context"]
    monkeypatch.setattr(module, "get_context", SimpleNamespace)
    return OldArguments()


def test_options_are_the_resolved_ones(arguments: Any) -> None:
    """Not what was asked for."""
    assert option(arguments, "tp_size") == 1


def test_overrides_last_as_long_as_the_block(arguments: Any) -> None:
    """Several at once."""
    with overridden(arguments, tp_size=2, page_size=8):
        assert option(arguments, "tp_size") == 2
        assert option(arguments, "page_size") == 8
    assert (option(arguments, "tp_size"), option(arguments, "page_size")) == (1, 1)


def test_overrides_end_when_the_block_raises(arguments: Any) -> None:
    """The server runs on."""
    with pytest.raises(KeyError), overridden(arguments, tp_size=2):
        raise KeyError
    assert option(arguments, "tp_size") == 1


@pytest.fixture
def runner(sglang: Context) -> ModelRunner:
    """A model runner on a CPU."""
    return ModelRunner()


def test_the_key_is_a_tables_without_its_model(runner: ModelRunner) -> None:
    """Every other field, and no more."""
    assert set(observed_key(runner)) == set(Key.names()) - {"model"}


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


class FlashAttentionBackend:
    """A backend of a GPU."""


class OtherAttnBackend:
    """A backend that nobody tried."""


def test_applied_hooks_pass(sglang: Context) -> None:
    """And others beside them do no harm."""
    HookRegistry._patched = {"a", "b", "c"}
    check_hooks(frozenset({"a", "c"}))


def test_a_hook_that_was_not_applied_is_refused(sglang: Context) -> None:
    """SGLang has only logged it."""
    HookRegistry._patched = {"a"}
    with pytest.raises(ConfigError, match="did not apply the hook on b; see its log"):
        check_hooks(frozenset({"a", "b", "c"}))


def test_a_known_server_passes(worker: Worker) -> None:
    """On a CPU."""
    check_server(worker)


def test_options_that_this_version_lacks_are_no_obstacle(
    worker: Worker, sglang: Context
) -> None:
    """What is not there cannot be on."""
    assert "enable_two_batch_overlap" not in sglang.options
    check_server(worker)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("tp_size", 2, "tp_size is 2: .*ranks would have to agree.*; use 1$"),
        ("pp_size", 2, "pp_size is 2: pipeline parallelism is not tried; use 1$"),
        ("dp_size", 4, "dp_size is 4: data parallelism.*; use 1$"),
        ("page_size", 16, "page_size is 16: pages of more than.*; use 1$"),
        ("enable_dp_attention", True, "with DP attention.*; turn it off$"),
        ("enable_two_batch_overlap", True, "two-batch overlap.*; turn it off$"),
        ("speculative_adaptive", True, "adaptive speculation.*; turn it off$"),
        (
            "speculative_use_rejection_sampling",
            True,
            "rejection sampling is biased by cutting; turn it off$",
        ),
        ("enable_return_routed_experts", True, "returned experts.*; turn it off$"),
        ("enable_lora", True, "adapters are not tried; turn it off$"),
        ("speculative_accept_threshold_single", 0.9, "already changes.*; use 1.0$"),
        ("speculative_accept_threshold_acc", 0.5, "already changes.*; use 1.0$"),
    ],
)
def test_what_was_not_tried_is_refused(
    worker: Worker, sglang: Context, name: str, value: Any, sentence: str
) -> None:
    """By its name."""
    sglang.options[name] = value
    with pytest.raises(ConfigError, match=f"^{name} is .*{sentence.split('is ')[-1]}"):
        check_server(worker)


@pytest.mark.parametrize("value", [False, None])
def test_what_is_off_is_no_obstacle(
    worker: Worker, sglang: Context, value: bool | None
) -> None:
    """However SGLang says so."""
    sglang.options |= dict.fromkeys(compat.NEVER, value)
    sglang.options |= dict.fromkeys(compat.ONE_EACH, 1)
    sglang.options |= dict.fromkeys(compat.EXACTLY, 1.0)
    check_server(worker)


def test_a_chain_is_refused(worker: Worker) -> None:
    """SGLang makes no scores for it."""
    worker.topk = 1
    with pytest.raises(ConfigError, match=r"--speculative-eagle-topk 1.*use 2 or more"):
        check_server(worker)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND", "lose the drafter's cache; unset"),
        ("SGLANG_SIMULATE_ACC_LEN", "takes no account of what was cut; unset"),
    ],
)
def test_variables_that_would_spoil_it_are_refused(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    """Unless they say no."""
    monkeypatch.setenv(name, "0")
    check_server(worker)
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name} is set: .*{says}"):
        check_server(worker)


@pytest.mark.parametrize(
    ("backend", "seen"), [("triton", True), ("triton_kernel", False)]
)
def test_routes_that_nobody_sees_are_refused(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, backend: str, seen: bool
) -> None:
    """Where a kernel routes by itself."""
    monkeypatch.setattr(compat, "moe_backend", lambda runner: f"Method-{backend}")
    refused = pytest.raises(ConfigError, match="--moe-runner-backend triton")
    with nullcontext() if seen else refused:
        compat.check_routes(worker.target_worker.model_runner)


def test_a_plan_stream_is_refused(worker: Worker) -> None:
    """A verification is then planned beside the draft, at the full width."""
    worker.plan_stream = object()
    with pytest.raises(ConfigError, match="SGLANG_ENABLE_OVERLAP_PLAN_STREAM is set"):
        check_server(worker)


def test_a_dense_model_is_refused(sglang: Context) -> None:
    """There is no union to price."""
    with pytest.raises(ConfigError, match="no routed experts; unset EVICT_PROFILE_"):
        check_server(Worker(ModelRunner(layers=0)))


@pytest.mark.parametrize(
    ("device", "backend", "known"),
    [
        ("cpu", OtherAttnBackend, False),
        ("cpu", FlashAttentionBackend, False),
        ("cuda", FlashAttentionBackend, True),
        ("cuda:0", FlashAttentionBackend, True),
        ("cuda", OtherAttnBackend, False),
        ("cuda", None, False),
    ],
)
def test_attention_backends_are_known_by_device(
    worker: Worker, device: str, backend: type | None, known: bool
) -> None:
    """The CPU's own is none for a GPU."""
    worker.runner.device = device
    if backend:
        worker.runner.attn_backend = backend()
    if known:
        check_server(worker)
        return
    with pytest.raises(
        ConfigError, match=r"not cut with \w+ yet; use --attention-back"
    ):
        check_server(worker)


@pytest.fixture
def served(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """The server that the known run prices."""
    monkeypatch.setattr(compat, "observed_key", lambda runner: dict(SERVED))
    for layer in worker.runner.model:
        layer.num_experts, layer.top_k = 32, 4
    return worker


def test_the_table_of_the_server_is_loaded(served: Worker, saved_table: Path) -> None:
    """Whatever it calls its model."""
    found = load_matching_table(saved_table, served)
    assert found.sha256 == CostTable.load(saved_table).sha256
    assert (found.key.model, found.caveats) == ("tiny", ())


@pytest.mark.parametrize(("topk", "warns"), [(4, False), (2, True)])
def test_drafting_of_another_shape_is_said(
    served: Worker, caplog: pytest.LogCaptureFixture, topk: int, warns: bool
) -> None:
    """The prices of verification still hold."""
    facts = {"steps": served.speculative_num_steps, "topk": 4}
    served.topk = topk
    document = {"drafting": {"batches": []}, "provenance": {"fingerprint": facts}}
    compat._warn_of_other_drafts(document, served)
    assert ("time of drafting is of steps" in caplog.text) is warns


@pytest.mark.parametrize("name", list(SERVED))
def test_another_engines_table_is_refused(
    served: Worker, saved_table: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each field of the key counts."""
    monkeypatch.setattr(
        compat, "observed_key", lambda runner: {**SERVED, name: "other"}
    )
    with pytest.raises(TableError, match=f"prices another engine .{name}: other here"):
        load_matching_table(saved_table, served)


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
    """Known by its shape."""
    for holder in (served.runner.model_config, *served.runner.model):
        if hasattr(holder, what):
            setattr(holder, what, value)
    with pytest.raises(ConfigError, match=f"prices a model with {sentence}; measure"):
        load_matching_table(saved_table, served)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"moe": {}}}'])
def test_what_is_no_table_is_refused(
    served: Worker, tmp_path: Path, content: str
) -> None:
    """In a sentence, whatever the file holds."""
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises((ConfigError, TableError), match=r"table\.json: "):
        load_matching_table(path, served)


def test_a_table_that_is_not_there_is_refused(served: Worker, tmp_path: Path) -> None:
    """As with a misspelt path."""
    with pytest.raises(TableError, match="cannot be read"):
        load_matching_table(tmp_path / "none.json", served)
