"""What must be true of a server before its trees may be cut.

Each condition was read or tried; what was not is refused, and the server then decodes
as if the plug-in were not there.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.observed import (
    experts,
    moe_backend,
    observed_key,
)
from evict_profile.integrations.sglang.options import option
from evict_profile.integrations.sglang.routing import BYPASSING
from evict_profile.runtime import CostTable
from evict_profile.signed import read_document

logger = logging.getLogger("evict_profile.sglang")

ATTENTION = ("FlashAttentionBackend", "FlashInferAttnBackend", "TritonAttnBackend")
ENVIRONMENT = {
    "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "a step that drafts nothing would lose "
    "the drafter's cache",
    "SGLANG_SIMULATE_ACC_LEN": "simulated acceptance takes no account of what was cut",
}
"""Variables of SGLang's that must not be set."""

ATTENTION_ON_CPU = "IntelAMXAttnBackend"
"""Attention backends that verify trees: all but the last on a GPU."""

ONE_EACH = {
    "tp_size": "tensor parallelism is not tried: ranks would have to agree on a width",
    "pp_size": "pipeline parallelism is not tried",
    "dp_size": "data parallelism inside one server is not tried",
    "page_size": "pages of more than one token are not tried",
}
NEVER = {
    "enable_dp_attention": "with DP attention, ranks verify together and must agree",
    "enable_two_batch_overlap": "two-batch overlap splits a batch by its full width",
    "speculative_adaptive": "adaptive speculation swaps the same graphs",
    "speculative_use_rejection_sampling": "rejection sampling is biased by cutting",
    "enable_return_routed_experts": "returned experts are read at the full width",
    "enable_lora": "adapters are not tried",
}
EXACTLY = {
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
}


def require_hooks(needed: frozenset[str]) -> None:
    """Refuse a process in which SGLang did not apply all hooks.

    SGLang only logs a hook that fails, and goes on.

    Raises:
        ConfigError: the first target that is not hooked.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    if missing := sorted(needed - set(HookRegistry._patched)):
        raise ConfigError(f"SGLang did not apply the hook on {missing[0]}; see its log")


def require_known_server(worker: Any) -> None:
    """Refuse a server whose trees cannot be cut, or have not been tried.

    Raises:
        ConfigError: what stands against it, and what to change.
    """
    runner = worker.target_worker.model_runner
    for check in (_require_tree, _require_options, _require_attention):
        check(worker, runner)
    if next(experts(runner.model), None) is None:
        raise ConfigError("the model has no routed experts; unset EVICT_PROFILE_TABLE")


def _require_tree(worker: Any, runner: Any) -> None:
    if worker.topk < 2:
        raise ConfigError(
            "with --speculative-eagle-topk 1 SGLang keeps no scores to cut by; use 2 "
            "or more"
        )
    if worker.plan_stream is not None:
        raise ConfigError(
            "SGLANG_ENABLE_OVERLAP_PLAN_STREAM is set, and trees were not cut with it "
            "yet; unset it"
        )


def _require_options(worker: Any, runner: Any) -> None:
    read = _reader(runner.server_args)
    for name, why in ONE_EACH.items():
        if (value := read(name)) not in (None, 1):
            raise ConfigError(f"{name} is {value}: {why}; use 1")
    for name, why in NEVER.items():
        if read(name):
            raise ConfigError(f"{name} is on: {why}; turn it off")
    for name, why in ENVIRONMENT.items():
        if os.environ.get(name, "").lower() not in ("", "0", "-1", "false"):
            raise ConfigError(f"{name} is set: {why}; unset it")
    for name, value in EXACTLY.items():
        if (found := read(name)) not in (None, value):
            raise ConfigError(
                f"{name} is {found}, which already changes what is said; use {value}"
            )


def _reader(server_args: Any) -> Callable[[str], Any]:
    """Options by name; None for one that this version does not have."""

    def read(name: str) -> Any:
        try:
            return option(server_args, name)
        except (AttributeError, ValueError, KeyError):
            return None

    return read


def _require_attention(worker: Any, runner: Any) -> None:
    name = type(runner.attn_backend).__name__
    known = ATTENTION if str(runner.device).startswith("cuda") else (ATTENTION_ON_CPU,)
    if name not in known:
        raise ConfigError(
            f"trees were not cut with {name} yet; use --attention-backend fa3, "
            "flashinfer or triton"
        )


def require_routes(runner: Any) -> None:
    """Refuse a server whose routes nobody can see.

    Raises:
        ConfigError: its MoE backend routes inside its own kernel.
    """
    backend = moe_backend(runner)
    if backend.endswith(tuple(f"-{name}" for name in BYPASSING)):
        raise ConfigError(
            f"the MoE backend {backend} routes inside its own kernel, where routes are "
            "neither seen nor changed: use --moe-runner-backend triton"
        )


def load_table(path: Path, worker: Any) -> CostTable:
    """The table, if it prices this very engine.

    The server cannot know what a table calls its model, so the model is compared by
    its shape, and the rest of the key by name.

    Raises:
        ConfigError: another model.
        TableError: unreadable, or another engine.
    """
    runner = worker.target_worker.model_runner
    document = read_document(path)
    _require_shape(path, document.get("model", {}), runner)
    _warn_of_other_drafts(document, worker)
    name = document.get("key", {}).get("model")
    return CostTable.load(path, {**observed_key(runner), "model": name})


def _warn_of_other_drafts(document: Mapping[str, Any], worker: Any) -> None:
    """Verification costs the same whatever was drafted; drafting does not."""
    facts = document.get("provenance", {}).get("fingerprint", {})
    drafted = (facts.get("steps"), facts.get("topk"))
    served = (worker.speculative_num_steps, worker.topk)
    if document.get("drafting") and None not in drafted and drafted != served:
        logger.warning(
            "evict-profile: the table's time of drafting is of steps %s and topk %s, "
            "and the server drafts steps %s and topk %s; measure it with the server's",
            *drafted,
            *served,
        )


def _require_shape(path: Path, model: Mapping[str, Any], runner: Any) -> None:
    moe, layer = model.get("moe", {}), next(experts(runner.model))
    config = runner.model_config
    expected = {
        "hidden size": (model.get("hidden_size"), config.hidden_size),
        "layers": (model.get("num_layers"), config.num_hidden_layers),
        "vocabulary": (model.get("vocab_size"), config.vocab_size),
        "experts": (moe.get("num_experts"), layer.num_experts),
        "top-k": (moe.get("top_k"), layer.top_k),
    }
    for what, (priced, served) in expected.items():
        if priced != served:
            raise ConfigError(
                f"{path}: prices a model with {what} {priced}, and the server's has "
                f"{served}; measure this model with: evict-profile profile --model "
                f"{config.model_path}/config.json --sweep sglang --python "
                f"{sys.executable}"
            )
