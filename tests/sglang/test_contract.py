"""What the plug-in relies on is there, in the version that is installed, and what
replaces SGLang's functions accepts their calls, in all versions at hand.

SGLang changes these names without notice. Nothing runs here but imports: signatures
and, where an instance would need weights, sources are read.
"""

import inspect
import pkgutil
import re
from functools import partial

import pytest

from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang import drafts, router, tree, worker
from evict_profile.integrations.sglang.compat import (
    SUPPORTED,
    check_accepts,
    installed,
)
from evict_profile.integrations.sglang.plugin import SWITCH_TARGET, hooks
from evict_profile.integrations.sglang.serving import Serving
from tests.sglang.sources import Sources, versions

SRT = "sglang.srt."
EAGLE = SRT + "speculative.eagle_worker_v2."
RUNNER = SRT + "model_executor.model_runner.ModelRunner"
GRAPHS = SRT + "model_executor.runner.DecodeCudaGraphRunner"
GRAPHS_OF_DRAFTS = (
    SRT + "speculative.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner"
)
GRAPHS_OF_EXTENSIONS = (
    SRT + "speculative.eagle_draft_extend_cuda_graph_runner."
    "EAGLEDraftExtendCudaGraphRunner"
)

TAKES = {
    worker.CREATE: ("self server_args", ""),
    tree.SCORES_TARGET: ("score_list token_list parents_list num_draft_token", ""),
    worker.BUILD: (
        "batch draft_input parent_list top_scores_index draft_tokens draft_probs",
        "target_worker topk num_steps num_draft_tokens",
    ),
    router.ROUTER_TARGET: ("hidden_states router_logits topk_config", "layer_id"),
    EAGLE + "EagleDraftWorker.draft": ("self batch", ""),
    drafts.CAPTURE_TARGET: ("self", ""),
    EAGLE + "EagleDraftWorker.init_attention_backend": ("self", ""),
    tree.CHAIN_TARGET: ("self forward_batch", ""),
    tree.EXTEND_TARGET: ("self batch batch_result", ""),
    SWITCH_TARGET: ("self recv_req", ""),
    GRAPHS_OF_EXTENSIONS + ".execute": ("self forward_batch select_index", ""),
    EAGLE + "EAGLEWorkerV2.alloc_memory_pool": (
        "self memory_pool_config req_to_token_pool token_to_kv_pool_allocator",
        "",
    ),
    EAGLE + "EAGLEWorkerV2.init_cuda_graphs": ("self", ""),
    EAGLE + "EAGLEWorkerV2.forward_batch_generation": ("self batch", ""),
    EAGLE + "EAGLEWorkerV2.verify": ("self batch", ""),
    EAGLE + "EAGLEWorkerV2._build_trivial_verify_input": ("self batch", ""),
    SRT + "speculative.eagle_utils.eagle_prepare_for_verify": (
        "verify_input req_to_token_pool batch target_worker",
        "",
    ),
    GRAPHS + ".__init__": (
        "self model_runner",
        "attn_backend speculative_num_steps speculative_num_draft_tokens",
    ),
    RUNNER + "._get_attention_backend": (None, "init_new_workspace"),
    "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func": (
        None,
        "req_pool_indices req_to_token start_offset end_offset batch_size "
        "draft_token_num device",
    ),
    SRT + "distributed.parallel_state.get_tp_group": ("", ""),
    SRT + "distributed.parallel_state.GroupCoordinator.broadcast": ("self input_", ""),
    SRT + "distributed.parallel_state.GroupCoordinator.broadcast_object": (
        "self obj",
        "",
    ),
    SRT + "plugins.hook_registry.HookRegistry.register": (
        "target hook hook_type",
        "",
    ),
}
"""What each is called with: by place, None where that is left open, and by name."""

HAS = {
    EAGLE + "EAGLEWorkerV2": (
        "topk speculative_num_steps speculative_num_draft_tokens plan_stream"
    ),
    EAGLE + "EagleDraftWorker": (
        "topk draft_runner target_worker speculative_num_steps draft_attn_backend "
        "draft_extend_attn_backend cuda_graph_runner cuda_graph_runner_for_draft_extend"
    ),
    SRT + "speculative.eagle_info.EagleDraftInput": "topk_p",
    SRT + "configs.model_config.ModelConfig": "quantization",
    RUNNER: (
        "server_args model_config spec_algorithm device dtype attn_backend "
        "decode_cuda_graph_runner init_new_workspace req_to_token_pool"
    ),
    SRT + "layers.moe.topk.StandardTopKOutput": "topk_weights topk_ids router_logits",
    SRT + "managers.scheduler.GenerationBatchResult": (
        "logits_output next_token_ids accept_lens speculative_num_draft_tokens"
    ),
    SRT + "speculative.eagle_info.EagleVerifyInput": (
        "draft_token custom_mask positions draft_token_num spec_steps"
    ),
    SRT + "layers.logits_processor.LogitsProcessorOutput": "hidden_states",
    SRT + "managers.io_struct.SetInternalStateReq": "server_args",
}
"""Fields, and attributes that instances get from their class or one above it."""


def found(target):
    module, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(module), name)


def test_version_is_supported():
    """Else the plug-in would refuse to start, whatever the rest says."""
    assert installed() in SUPPORTED


@pytest.mark.parametrize(
    ("target", "by_place", "by_name"), [(name, *takes) for name, takes in TAKES.items()]
)
def test_takes_what_it_is_called_with(target, by_place, by_name):
    parameters = inspect.signature(found(target)).parameters
    assert set(by_name.split()) <= set(parameters)
    if by_place is not None:
        given = by_place.split()
        assert list(parameters)[: len(given)] == given
        rest = [
            p
            for p in list(parameters.values())[len(given) :]
            if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        assert target.endswith("register") or all(
            p.default is not p.empty for p in rest
        )


@pytest.mark.parametrize(("target", "names"), HAS.items(), ids=HAS)
def test_has_attributes(target, names):
    kind = found(target)
    source = "".join(
        inspect.getsource(c) for c in kind.__mro__ if "sglang" in c.__module__
    )
    targets = re.findall(
        r"^ +((?:self\.\w+[, ]*)+)(?::[^=\n]+)?= ", source, re.MULTILINE
    )
    has = set(re.findall(r"self\.(\w+)", " ".join(targets))) | set(dir(kind))
    has |= set(getattr(kind, "__dataclass_fields__", ()))
    assert set(names.split()) <= has


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize(
    "settings",
    [Settings("observe"), Settings("on", expert_budget=8, fewer_steps=2)],
    ids=["observing", "budget and fewer levels"],
)
def test_hooks_accept_what_their_targets_do(version, settings):
    sources = Sources.of(version)
    for target, hook in hooks(Serving(settings)).items():
        check_accepts(partial(hook, None), sources.signature(target), target)


@pytest.mark.parametrize("version", versions())
def test_overrides_accept_what_sglangs_methods_do(version):
    sources = Sources.of(version)
    for name, own in inspect.getmembers(worker.TruncatingWorker, inspect.isfunction):
        target = f"{EAGLE}EAGLEWorkerV2.{name}"
        check_accepts(own, sources.signature(target), target)


def test_worker_is_created_once_a_class_is_known():
    assert "EAGLEWorkerV2" in inspect.getsource(found(worker.CREATE))


def test_target_is_reached_through_the_worker():
    eagle = found(EAGLE + "EAGLEWorkerV2")
    assert isinstance(inspect.getattr_static(eagle, "target_worker"), property)
    verifies = inspect.getsource(found(EAGLE + "build_eagle_verify_input"))
    assert "target_worker.model_runner.attn_backend" in verifies


def test_draft_graphs_capture_what_scores_chains():
    """The hooked method runs within the graph, on the graph's own `topk_p`."""
    graphs = found(GRAPHS_OF_DRAFTS)
    captured = inspect.getsource(graphs.capture_one_shape)
    assert "self.eagle_worker.draft_forward(forward_batch)" in captured
    assert "topk_p = buffers.topk_p[:num_seqs]" in captured
    replayed = inspect.getsource(graphs.execute)
    assert "buffers.topk_p[:raw_bs]," in replayed
    assert "forward_batch.spec_info.topk_p," in replayed


def test_graphs_of_extensions_are_captured_where_they_have_a_backend():
    """And draft graphs are made by the steps and the backend of the drafter."""
    captures = inspect.getsource(found(drafts.CAPTURE_TARGET))
    assert re.search(r"if \(\s+self\.draft_extend_attn_backend\s+and ", captures)
    made = inspect.getsource(found(GRAPHS_OF_DRAFTS + ".__init__"))
    assert "draft_attn_backend or model_runner.draft_attn_backend" in made
    assert "get_spec().speculative_num_steps" in made


def test_hooks_can_be_counted():
    registry = found(SRT + "plugins.hook_registry.HookRegistry")
    assert isinstance(registry._patched, set)
