"""Every name of vLLM that the plug-in and the exports rely on is in the installed one.

Where an import would need a GPU, sources are read.
"""

import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from evict_profile.integrations.vllm.checks import SUPPORTED, installed
from tests.vllm.server import make_manager


def source(module):
    spec = importlib.util.find_spec(f"vllm.{module}")
    assert spec and spec.origin
    return Path(spec.origin).read_text(encoding="utf-8")


def assigned(text, owner):
    body = re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", text, re.M | re.S)
    return set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", body[0] if body else ""))


def test_version_is_supported():
    assert installed() in SUPPORTED


ADAPTIVE = "vllm.v1.worker.gpu.spec_decode.adaptive_verification."
WRAPPER = "vllm.v1.worker.worker_base.WorkerWrapperBase."
MODEL = "vllm.config.ModelConfig."
CURVES = "draft_curve verify_curve"
LIMITS = "max_num_reqs max_batch_tokens"
SIZES = "hidden_size total_num_hidden_layers vocab_size num_experts num_experts_per_tok"
TAKES = {
    f"{ADAPTIVE}AdaptiveVerificationManager.set_cost_curves": f"self {CURVES}",
    f"{ADAPTIVE}build_cost_tables_from_curves": f"{CURVES} {LIMITS}",
    WRAPPER + "init_device": "self",
    **{f"{MODEL}get_{size}": "self" for size in SIZES.split()},
}
"""What each is called with, by place."""

SAYS = [
    (ADAPTIVE[5:-1], "get_tp_group().broadcast_object("),
    ("v1.worker.worker_base", "self.worker.init_device()"),
    ("v1.worker.worker_base", "worker_extension_cls"),
    ("v1.worker.worker_base", "load_general_plugins()"),
    ("v1.worker.gpu_worker", "def compile_or_warm_up_model(self)"),
    ("v1.worker.gpu_worker", "self.model_runner.capture_model()"),
    ("v1.worker.gpu.cudagraph_utils", "def captured_token_counts(self) -> list"),
    ("v1.worker.gpu.model_runner", ".set_initial_cost_curves(timings)"),
    ("v1.worker.gpu.model_runner", "self.adaptive_verification"),
    ("v1.worker.gpu.model_runner", "self.cudagraph_manager"),
    ("v1.worker.gpu.model_runner", "self.model_config"),
    ("v1.worker.gpu.model_runner", "self.parallel_config"),
    ("plugins", 'DEFAULT_PLUGINS_GROUP = "vllm.general_plugins"'),
    ("config.parallel", "tensor_parallel_size: int"),
    ("config.parallel", "data_parallel_size: int"),
    ("config.parallel", "enable_expert_parallel: bool"),
]
"""Words of each module that the plug-in relies on."""


@pytest.mark.parametrize(("target", "names"), TAKES.items(), ids=TAKES)
def test_takes_what_it_is_called_with(target, names):
    taken = list(inspect.signature(pkgutil.resolve_name(target)).parameters)
    assert taken[: len(names.split())] == names.split()


@pytest.mark.parametrize(("module", "words"), SAYS)
def test_source_has_what_is_relied_on(module, words):
    assert words in source(module)


def test_the_manager_of_the_tests_has_only_what_vllms_has():
    """Attributes that are set by hand are those that the constructor sets."""
    text = source("v1.worker.gpu.spec_decode.adaptive_verification")
    own = assigned(text, "AdaptiveVerificationManager")
    assert set(vars(make_manager())) <= own
    states = assigned(source("v1.worker.gpu.states"), "RequestState")
    assert set(vars(make_manager().req_states)) - {"num_computed_tokens_np"} <= states
    assert "num_computed_tokens_np" in source("v1.worker.gpu.states")


def test_metrics_are_named_as_they_are_read():
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    made: Any = RequestSpecDecodeMetrics.new(3)
    made.observe(3, 1, detailed=True)
    made.observe(3, 3, detailed=True)
    told = made.to_dict()
    assert told["per_step_accepted"] == [1, 3]
    assert told["per_step_drafted"] == [3, 3]
    assert told["acceptance_histogram"] == [0, 1, 0, 1]
    assert told["num_draft_tokens"] == 6
