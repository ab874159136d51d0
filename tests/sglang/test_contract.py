"""What the plug-in relies on is there, in the version that is installed.

SGLang changes these names without notice. Nothing runs here but imports: signatures
and, where an instance would need weights, sources are read.
"""

import inspect
import pkgutil
import re

import pytest

from evict_profile.integrations.sglang import buffers, worker
from evict_profile.integrations.sglang.compat import SUPPORTED, installed

SRT = "sglang.srt."
EAGLE = SRT + "speculative.eagle_worker_v2."
RUNNER = SRT + "model_executor.model_runner.ModelRunner"
GRAPHS = SRT + "model_executor.runner.DecodeCudaGraphRunner"
ALLOC_MEMORY_POOL = (
    "memory_pool_config",
    "req_to_token_pool",
    "token_to_kv_pool_allocator",
)

POSITIONAL = {
    worker.CREATE: ("self", "server_args"),
    buffers.SCORES_TARGET: (
        "score_list",
        "token_list",
        "parents_list",
        "num_draft_token",
    ),
    worker.BUILD: (
        "batch",
        "draft_input",
        "parent_list",
        "top_scores_index",
        "draft_tokens",
        "draft_probs",
    ),
    buffers.ROUTER_TARGET: ("hidden_states", "router_logits", "topk_config"),
    EAGLE + "EagleDraftWorker.draft": ("self", "batch"),
    EAGLE + "EAGLEWorkerV2.alloc_memory_pool": ("self", *ALLOC_MEMORY_POOL),
    EAGLE + "EAGLEWorkerV2.init_cuda_graphs": ("self",),
    EAGLE + "EAGLEWorkerV2.forward_batch_generation": ("self", "batch"),
    EAGLE + "EAGLEWorkerV2.verify": ("self", "batch"),
    EAGLE + "EAGLEWorkerV2._build_trivial_verify_input": ("self", "batch"),
    SRT + "speculative.eagle_utils.eagle_prepare_for_verify": (
        "verify_input",
        "req_to_token_pool",
        "batch",
        "target_worker",
    ),
    GRAPHS + ".__init__": ("self", "model_runner"),
}
"""What each is called with, by place."""

BY_NAME = {
    worker.BUILD: ("target_worker", "topk", "num_steps", "num_draft_tokens"),
    buffers.ROUTER_TARGET: ("layer_id",),
    RUNNER + "._get_attention_backend": ("init_new_workspace",),
    GRAPHS + ".__init__": (
        "attn_backend",
        "speculative_num_steps",
        "speculative_num_draft_tokens",
    ),
    "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func": (
        "req_pool_indices",
        "req_to_token",
        "start_offset",
        "end_offset",
        "batch_size",
        "draft_token_num",
        "device",
    ),
}
"""What each is called with, by name."""

ASSIGNED = {
    EAGLE + "EAGLEWorkerV2": (
        "topk",
        "speculative_num_steps",
        "speculative_num_draft_tokens",
        "plan_stream",
    ),
    SRT + "configs.model_config.ModelConfig": ("quantization",),
    RUNNER: (
        "server_args",
        "model_config",
        "spec_algorithm",
        "device",
        "dtype",
        "attn_backend",
        "decode_cuda_graph_runner",
        "init_new_workspace",
        "req_to_token_pool",
    ),
}
"""Attributes that instances get from their own class or one above it."""

FIELDS = {
    SRT + "layers.moe.topk.StandardTopKOutput": (
        "topk_weights",
        "topk_ids",
        "router_logits",
    ),
    SRT + "managers.scheduler.GenerationBatchResult": (
        "logits_output",
        "next_token_ids",
        "accept_lens",
        "speculative_num_draft_tokens",
    ),
    SRT + "speculative.eagle_info.EagleVerifyInput": (
        "draft_token",
        "custom_mask",
        "positions",
        "draft_token_num",
        "spec_steps",
    ),
    SRT + "layers.logits_processor.LogitsProcessorOutput": ("hidden_states",),
}
"""Fields of what is returned."""


def found(target):
    """What SGLang's hooks would find under this name."""
    module, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(module), name)


def parameters(target):
    return dict(inspect.signature(found(target)).parameters)


def each(expected):
    """A test for each of a table's rows."""
    rows = expected.items()
    ids = [target.split(".")[-1] for target in expected]
    return pytest.mark.parametrize(("target", "names"), rows, ids=ids)


def test_version_is_supported():
    """Else the plug-in would refuse to start, whatever the rest says."""
    assert installed() in SUPPORTED


@each(POSITIONAL)
def test_takes_by_place(target, names):
    """Its first parameters are these, in this order; further ones have defaults."""
    takes = list(parameters(target).values())
    assert tuple(each.name for each in takes[: len(names)]) == names
    rest = [p for p in takes[len(names) :] if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert all(p.default is not p.empty for p in rest)


@each(BY_NAME)
def test_takes_by_name(target, names):
    """These keywords exist."""
    assert set(names) <= set(parameters(target))


@each(ASSIGNED)
def test_has_attributes(target, names):
    """A class, or one above it, assigns them, or offers them as properties."""
    classes = found(target).__mro__[:-1]
    source = "".join(inspect.getsource(c) for c in classes if "sglang" in c.__module__)
    targets = re.findall(
        r"^ +((?:self\.\w+[, ]*)+)(?::[^=\n]+)?= ", source, re.MULTILINE
    )
    assigned = set(re.findall(r"self\.(\w+)", " ".join(targets)))
    assert set(names) <= assigned | set(dir(found(target)))


@each(FIELDS)
def test_returns_fields(target, names):
    """These fields can be read."""
    kind = found(target)
    fields = getattr(kind, "_fields", None) or kind.__dataclass_fields__
    assert set(names) <= set(fields)


def test_worker_is_created_once_a_class_is_known():
    """`create_worker` returns the class that the plug-in subclasses."""
    assert "EAGLEWorkerV2" in inspect.getsource(found(worker.CREATE))


def test_target_is_reached_through_the_worker():
    """`worker.target_worker.model_runner`, whose graphs are swapped."""
    eagle = found(EAGLE + "EAGLEWorkerV2")
    assert isinstance(inspect.getattr_static(eagle, "target_worker"), property)
    verifies = inspect.getsource(found(EAGLE + "build_eagle_verify_input"))
    assert "target_worker.model_runner.attn_backend" in verifies


def test_hooks_can_be_counted():
    """A hook that fails is only logged, so the plug-in looks at what was patched."""
    registry = found(SRT + "plugins.hook_registry.HookRegistry")
    assert isinstance(registry._patched, set)
    assert list(inspect.signature(registry.register).parameters)[:3] == [
        "target",
        "hook",
        "hook_type",
    ]
