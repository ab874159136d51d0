"""Every name of vLLM that the plug-in and the exports rely on is in the installed one.

Where an import would need a GPU, sources are read.
"""

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from evict_profile.integrations.vllm.checks import SUPPORTED, installed
from tests.vllm.server import make_manager


def source(module):
    """The text of a module of vLLM, which is not imported."""
    spec = importlib.util.find_spec(f"vllm.{module}")
    assert spec and spec.origin
    return Path(spec.origin).read_text(encoding="utf-8")


def assigned(text, owner):
    """Attributes that a class of this text assigns to itself."""
    body = re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", text, re.M | re.S)
    return set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", body[0] if body else ""))


def test_version_is_supported():
    assert installed() in SUPPORTED


def test_curves_are_taken_as_two_lists():
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    manager = adaptive.AdaptiveVerificationManager
    names = list(inspect.signature(manager.set_cost_curves).parameters)
    assert names == ["self", "draft_curve", "verify_curve"]
    names = list(inspect.signature(adaptive.build_cost_tables_from_curves).parameters)
    assert names[:4] == [
        "draft_curve",
        "verify_curve",
        "max_num_reqs",
        "max_batch_tokens",
    ]
    assert "get_tp_group().broadcast_object(" in inspect.getsource(
        manager.set_cost_curves
    )


def test_the_manager_of_the_tests_has_only_what_vllms_has():
    """Attributes that are set by hand are those that the constructor sets."""
    text = source("v1.worker.gpu.spec_decode.adaptive_verification")
    own = assigned(text, "AdaptiveVerificationManager")
    assert set(vars(make_manager())) <= own
    states = assigned(source("v1.worker.gpu.states"), "RequestState")
    assert set(vars(make_manager().req_states)) - {"num_computed_tokens_np"} <= states
    assert "num_computed_tokens_np" in source("v1.worker.gpu.states")


@pytest.mark.parametrize(
    ("module", "owner", "names"),
    [
        (
            "v1.worker.gpu.model_runner",
            "GPUModelRunner",
            {
                "adaptive_verification",
                "cudagraph_manager",
                "model_config",
                "parallel_config",
            },
        ),
        ("v1.worker.worker_base", "WorkerWrapperBase", {"worker"}),
        ("v1.worker.gpu_worker", "Worker", {"model_runner"}),
    ],
)
def test_has_attributes(module, owner, names):
    text = source(module)
    found = assigned(text, owner) | set(re.findall(r"self\.(\w+)\b", text))
    assert f"class {owner}" in text
    assert names <= found


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("v1.worker.gpu_worker", "def compile_or_warm_up_model(self)"),
        ("v1.worker.gpu_worker", "self.model_runner.capture_model()"),
        ("v1.worker.gpu.cudagraph_utils", "def captured_token_counts(self) -> list"),
        ("v1.worker.gpu.model_runner", ".set_initial_cost_curves(timings)"),
        ("v1.worker.worker_base", "worker_extension_cls"),
        ("v1.worker.worker_base", "load_general_plugins()"),
        ("plugins", 'DEFAULT_PLUGINS_GROUP = "vllm.general_plugins"'),
    ],
)
def test_source_holds(module, words):
    assert words in source(module)


def test_the_wrapper_makes_its_worker_before_init_device():
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    assert list(inspect.signature(WorkerWrapperBase.init_device).parameters) == ["self"]
    assert "self.worker.init_device()" in inspect.getsource(
        WorkerWrapperBase.init_device
    )


@pytest.mark.parametrize(
    "name",
    [
        "get_hidden_size",
        "get_total_num_hidden_layers",
        "get_vocab_size",
        "get_num_experts",
        "get_num_experts_per_tok",
    ],
)
def test_model_config_tells_the_shape(name):
    from vllm.config import ModelConfig

    assert list(inspect.signature(getattr(ModelConfig, name)).parameters) == ["self"]


@pytest.mark.parametrize(
    "name", ["tensor_parallel_size", "data_parallel_size", "enable_expert_parallel"]
)
def test_parallel_config_tells_the_sharding(name):
    from vllm.config import ParallelConfig

    assert name in ParallelConfig.__dataclass_fields__


def test_metrics_are_named_as_they_are_read():
    """What `--metrics` reads, as vLLM's own class writes it."""
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    made: Any = RequestSpecDecodeMetrics.new(3)
    made.observe(3, 1, detailed=True)
    made.observe(3, 3, detailed=True)
    told = made.to_dict()
    assert told["per_step_accepted"] == [1, 3]
    assert told["per_step_drafted"] == [3, 3]
    assert told["acceptance_histogram"] == [0, 1, 0, 1]
    assert told["num_draft_tokens"] == 6
