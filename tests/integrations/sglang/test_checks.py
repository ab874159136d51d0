"""Servers whose trees must not be cut, each refused in a sentence with its fix."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.sglang import checks
from evict_profile.integrations.sglang.checks import (
    load_table,
    require_hooks,
    require_known_server,
)
from evict_profile.runtime import CostTable
from tests.integrations.sglang.server import Context, HookRegistry, ModelRunner, Worker

KEY = {
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
    require_hooks(frozenset({"a", "c"}))


def test_a_hook_that_was_not_applied_is_refused(sglang: Context) -> None:
    """SGLang has only logged it."""
    HookRegistry._patched = {"a"}
    with pytest.raises(ConfigError, match="did not apply the hook on b; see its log"):
        require_hooks(frozenset({"a", "b", "c"}))


def test_a_known_server_passes(worker: Worker) -> None:
    """On a CPU."""
    require_known_server(worker)


def test_options_that_this_version_lacks_are_no_obstacle(
    worker: Worker, sglang: Context
) -> None:
    """What is not there cannot be on."""
    assert "enable_two_batch_overlap" not in sglang.options
    require_known_server(worker)


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
        require_known_server(worker)


@pytest.mark.parametrize("value", [False, None])
def test_what_is_off_is_no_obstacle(
    worker: Worker, sglang: Context, value: bool | None
) -> None:
    """However SGLang says so."""
    sglang.options |= dict.fromkeys(checks.NEVER, value)
    sglang.options |= dict.fromkeys(checks.ONE_EACH, 1)
    sglang.options |= dict.fromkeys(checks.EXACTLY, 1.0)
    require_known_server(worker)


def test_a_chain_is_refused(worker: Worker) -> None:
    """SGLang makes no scores for it."""
    worker.topk = 1
    with pytest.raises(ConfigError, match=r"--speculative-eagle-topk 1.*use 2 or more"):
        require_known_server(worker)


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
    require_known_server(worker)
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name} is set: .*{says}"):
        require_known_server(worker)


@pytest.mark.parametrize(
    ("backend", "seen"), [("triton", True), ("triton_kernel", False)]
)
def test_routes_that_nobody_sees_are_refused(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, backend: str, seen: bool
) -> None:
    """Where a kernel routes by itself."""
    monkeypatch.setattr(checks, "moe_backend", lambda runner: f"Method-{backend}")
    refused = pytest.raises(ConfigError, match="--moe-runner-backend triton")
    with nullcontext() if seen else refused:
        checks.require_routes(worker.target_worker.model_runner)


def test_a_plan_stream_is_refused(worker: Worker) -> None:
    """A verification is then planned beside the draft, at the full width."""
    worker.plan_stream = object()
    with pytest.raises(ConfigError, match="SGLANG_ENABLE_OVERLAP_PLAN_STREAM is set"):
        require_known_server(worker)


def test_a_dense_model_is_refused(sglang: Context) -> None:
    """There is no union to price."""
    with pytest.raises(ConfigError, match="no routed experts; unset EVICT_PROFILE_"):
        require_known_server(Worker(ModelRunner(layers=0)))


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
        require_known_server(worker)
        return
    with pytest.raises(
        ConfigError, match=r"not cut with \w+ yet; use --attention-back"
    ):
        require_known_server(worker)


@pytest.fixture
def served(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """The server that the known run prices."""
    monkeypatch.setattr(checks, "observed_key", lambda runner: dict(KEY))
    for layer in worker.runner.model:
        layer.num_experts, layer.top_k = 32, 4
    return worker


def test_the_table_of_the_server_is_loaded(served: Worker, saved_table: Path) -> None:
    """Whatever it calls its model."""
    found = load_table(saved_table, served)
    assert found.sha256 == CostTable.load(saved_table).sha256
    assert (found.key["model"], found.marks) == ("tiny", ())


@pytest.mark.parametrize(("topk", "warns"), [(4, False), (2, True)])
def test_drafting_of_another_shape_is_said(
    served: Worker, caplog: pytest.LogCaptureFixture, topk: int, warns: bool
) -> None:
    """The prices of verification still hold."""
    facts = {"steps": served.speculative_num_steps, "topk": 4}
    served.topk = topk
    document = {"drafting": {"batches": []}, "provenance": {"fingerprint": facts}}
    checks._warn_of_other_drafts(document, served)
    assert ("time of drafting is of steps" in caplog.text) is warns


@pytest.mark.parametrize("name", list(KEY))
def test_another_engines_table_is_refused(
    served: Worker, saved_table: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each field of the key counts."""
    monkeypatch.setattr(checks, "observed_key", lambda runner: {**KEY, name: "other"})
    with pytest.raises(TableError, match=f"prices another engine .{name}: other here"):
        load_table(saved_table, served)


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
        load_table(saved_table, served)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"moe": {}}}'])
def test_what_is_no_table_is_refused(
    served: Worker, tmp_path: Path, content: str
) -> None:
    """In a sentence, whatever the file holds."""
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises((ConfigError, TableError), match=r"table\.json: "):
        load_table(path, served)


def test_a_table_that_is_not_there_is_refused(served: Worker, tmp_path: Path) -> None:
    """As with a misspelt path."""
    with pytest.raises(TableError, match="cannot be read"):
        load_table(tmp_path / "none.json", served)
