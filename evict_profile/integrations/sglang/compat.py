"""What the plug-in reads of SGLang, and what must be true before trees are truncated.

Keys are of observed kernels, since SGLang resolves "auto" and falls back.
"""

import inspect
import logging
import os
import pkgutil
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evict_profile.errors import ConfigError
from evict_profile.integrations import matching
from evict_profile.records import replace
from evict_profile.sweep.machine import cpu_name
from evict_profile.table import CostTable

logger = logging.getLogger("evict_profile.sglang")

ENGINE = "sglang"
SOURCE = "evict_profile"

CUTTING = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""The plug-in's versions. The tests run engines of the first and the last on a CPU, and
hold the hooks against the sources of all."""

SUPPORTED = ("0.5.16", *CUTTING)
"""The sweep's. 0.5.16 needs CUDA with torch 2.11. Its EAGLE path cannot run on a CPU,
so the plug-in was not tested there."""

ATTENTION = ("FlashAttentionBackend", "FlashInferAttnBackend", "TritonAttnBackend")
ATTENTION_ON_CPU = ("IntelAMXAttnBackend",)
"""Attention backends that verify trees: all but the last on a GPU."""

BYPASSING = (
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
    "flashinfer_mxfp4",
    "experimental_sgl_trtllm",
    "triton_kernel",
)
"""MoE runner backends that route inside their own kernel, where no hook reaches."""

ENVIRONMENT = {
    "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "a step that drafts nothing would lose "
    "the drafter's cache",
    "SGLANG_SIMULATE_ACC_LEN": "simulated acceptance takes no account of what was cut",
}

OPTIONS: Mapping[str, tuple[object, str]] = {
    "pp_size": (1, "pipeline parallelism is not tried"),
    "dp_size": (1, "data parallelism inside one server is not tried"),
    "page_size": (1, "pages of more than one token are not tried"),
    "enable_dp_attention": (False, "ranks verify together and must agree on a width"),
    "enable_two_batch_overlap": (False, "a batch is split by its full width"),
    "speculative_adaptive": (False, "adaptive speculation swaps the same graphs"),
    "speculative_use_rejection_sampling": (False, "it is biased by cutting"),
    "enable_return_routed_experts": (False, "experts are read at the full width"),
    "enable_lora": (False, "adapters are not tried"),
    "speculative_accept_threshold_single": (1.0, "it already changes what is said"),
    "speculative_accept_threshold_acc": (1.0, "it already changes what is said"),
}
"""The value that each option must have, where this version has it, and why."""


def installed(versions: Sequence[str] = SUPPORTED) -> str:
    how = (
        "; in a checkout: pip install '.[sglang]', or give the Python that has it with "
        "--python"
    )
    return matching.installed_version("SGLang", ["sglang"], versions, how)


def option(server_args: Any, name: str) -> Any:
    """A resolved option by its flat name, such as "tp_size"."""
    context = _context()
    return context.config_leaf(name) if context else getattr(server_args, name)


@contextmanager
def overridden(server_args: Any, **values: Any) -> Iterator[None]:
    before = {name: option(server_args, name) for name in values}
    override = (_context() or server_args).override
    override(SOURCE, **values)
    try:
        yield
    finally:
        override(SOURCE, **before)


@contextmanager
def assigned(target: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(target, name) for name in values}
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


def _context() -> Any:
    """Where resolved options are since 0.5.18, apart from the arguments in
    `ServerArgs`; None in 0.5.16.
    """
    from sglang.srt import runtime_context

    context = runtime_context.get_context()
    return context if hasattr(context, "config_leaf") else None


def experts(model: torch.nn.Module) -> Iterator[Any]:
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    return (module for module in model.modules() if isinstance(module, FusedMoE))


def observed_key(model_runner: Any) -> dict[str, Any]:
    """The key of this engine without the model's name."""
    args = model_runner.server_args
    is_captured = model_runner.decode_cuda_graph_runner is not None
    return {
        "gpu": device_name(model_runner),
        "dtype": weight_format(model_runner),
        "engine": ENGINE,
        "engine_version": installed(),
        "attention_backend": attention_backend(model_runner),
        "moe_backend": moe_backend(model_runner),
        "graph_mode": "cuda-graph" if is_captured else "eager",
        "tp": option(args, "tp_size"),
        "ep": option(args, "ep_size"),
    }


def weight_format(model_runner: Any) -> str:
    """The type of the weights. "_block" at its end means a scale for each block of
    weights, which other kernels run."""
    name = model_runner.model_config.quantization
    if not name:
        return str(model_runner.dtype).removeprefix("torch.")
    method = getattr(next(experts(model_runner.model), None), "quant_method", None)
    in_blocks = getattr(method, "weight_block_size", None)
    return f"{name}_block" if in_blocks else str(name)


def attention_backend(model_runner: Any) -> str:
    """The class that runs attention, with its kernel's version if it has several."""
    backend = model_runner.attn_backend
    version = getattr(backend, "fa_impl_ver", None)
    name = type(backend).__name__
    return f"{name}-fa{version}" if version else name


def moe_backend(model_runner: Any) -> str:
    """The kernels that run the experts of the first MoE layer."""
    layer = next(experts(model_runner.model), None)
    if layer is None:
        return "none"
    method = layer.quant_method
    runner = getattr(getattr(method, "runner", None), "runner_backend", None)
    # On a CPU a runner is made all the same, and is not asked.
    kernel = runner.value if runner and on_gpu(model_runner) else "native"
    return f"{type(method).__name__}-{kernel}"


def on_gpu(model_runner: Any) -> bool:
    return str(model_runner.device).startswith("cuda")


def device_name(model_runner: Any) -> str:
    return torch.cuda.get_device_name() if on_gpu(model_runner) else cpu_name()


def cache_slots(batch: Any, width: int) -> torch.Tensor:
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func

    slots: torch.Tensor = assign_extend_cache_locs_func(
        req_pool_indices=batch.req_pool_indices,
        req_to_token=batch.req_to_token_pool.req_to_token,
        start_offset=batch.seq_lens,
        end_offset=batch.seq_lens + width,
        batch_size=len(batch.seq_lens),
        draft_token_num=width,
        device=batch.device,
    )
    return slots


def check_hooks(hooks: Mapping[str, Callable[..., Any]]) -> None:
    """Refuse a process in which a hook is missing, which SGLang only logs, or does not
    accept what its target does.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    if missing := sorted(set(hooks) - HookRegistry._patched):
        raise ConfigError(f"SGLang did not apply the hook on {missing[0]}; see its log")
    for target, hook in hooks.items():
        taken = inspect.signature(pkgutil.resolve_name(target))
        check_accepts(partial(hook, None), taken, target)


def check_accepts(
    own: Callable[..., Any], taken: inspect.Signature, target: str
) -> None:
    """Refuse a function of the plug-in in a target's place, if there is a call that the
    target takes and the function does not.
    """
    required = [p for p in taken.parameters.values() if p.default is p.empty]
    for given in (taken.parameters.values(), required):
        by_place = [p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
        by_name = {p.name: p for p in given if p.kind is p.KEYWORD_ONLY}
        try:
            inspect.signature(own).bind(*by_place, **by_name)
        except TypeError as error:
            raise ConfigError(
                f"SGLang calls {target} in a way that the plug-in does not know "
                f"({error}); install SGLang {' or '.join(CUTTING)}"
            ) from None


def check_server(worker: Any) -> None:
    """Refuse a server whose trees cannot be cut, or have not been tried."""
    runner = worker.target_worker.model_runner
    _check_options(runner.server_args)
    name = type(runner.attn_backend).__name__
    layer = next(experts(runner.model), None)
    wrong = {
        "SGLANG_ENABLE_OVERLAP_PLAN_STREAM is set, and trees were not cut with it yet; "
        "unset it": worker.plan_stream is not None,
        f"trees were not cut with {name} yet; use --attention-backend fa3, flashinfer "
        "or triton": name not in (ATTENTION if on_gpu(runner) else ATTENTION_ON_CPU),
        "the model has no routed experts; unset EVICT_PROFILE_TABLE": layer is None,
        "shared experts are fused with the routed ones, as in no table; serve with "
        "--disable-shared-experts-fusion": getattr(layer, "num_fused_shared_experts", 0)
        > 0,
    }
    for why, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(why)


def _check_options(server_args: Any) -> None:
    for name, why in ENVIRONMENT.items():
        if os.environ.get(name, "").lower() not in ("", "0", "-1", "false"):
            raise ConfigError(f"{name} is set: {why}; unset it")
    for name, (wanted, why) in OPTIONS.items():
        with suppress(AttributeError, ValueError, KeyError):  # not in this version
            if (value := option(server_args, name)) not in (None, wanted):
                fix = f"use {wanted}" if wanted else "turn it off"
                raise ConfigError(f"{name} is {value}: {why}; {fix}")


def check_routes(runner: Any) -> None:
    """Refuse a server that routes inside a kernel, out of reach of hooks."""
    backend = moe_backend(runner)
    if backend.endswith(tuple(f"-{name}" for name in BYPASSING)):
        raise ConfigError(
            f"the MoE backend {backend} routes inside its own kernel, where routes are "
            "neither seen nor changed: use --moe-runner-backend triton"
        )


def load_matching_table(path: Path, allow: str, worker: Any) -> CostTable:
    """The table of a served step, if it is of this very engine."""
    runner = worker.target_worker.model_runner
    config, layer = runner.model_config, next(experts(runner.model))
    shape = {
        "hidden size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
        "experts": layer.num_experts,
        "top-k": layer.top_k,
    }
    key = observed_key(runner)
    words = (f"{config.model_path}/config.json", "--python", sys.executable)
    fix = (
        f"measure this engine with: evict-profile sweep {shlex.join(words)} "
        "--plan sglang"
    )
    if key["tp"] > 1:
        fix += f", from a copy of that plan with tp: {key['tp']} under engine"
    table = matching.load_matching_table(path, key, shape, allow, fix)
    _warn_of_other_drafts(table, worker)
    if not table.drafting:
        return table
    return replace(table, drafting=table.drafting.extending()).as_of(table)


def _warn_of_other_drafts(table: CostTable, worker: Any) -> None:
    facts = table.provenance.fingerprint
    drafted = (facts.get("steps"), facts.get("topk"))
    served = (worker.speculative_num_steps, worker.topk)
    if table.drafting and None not in drafted and drafted != served:
        logger.warning(
            "evict-profile: the table's time of drafting is of steps %s and topk %s, "
            "and the server drafts steps %s and topk %s; measure it with the server's",
            *drafted,
            *served,
        )
