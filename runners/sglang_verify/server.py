"""SGLang's model workers, built as its scheduler builds them, and nothing around them.

No tokenizer, no processes, no requests: the target, the EAGLE-3 head where it can run,
their pools, attention backends and captured graphs. The scheduler's own methods do it,
called one by one, so that what is measured is what a server would run.
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from runners.sglang_verify.models import load_format

NO_RANK = ("dp_rank", "moe_dp_rank")
"""Ranks that are None where there is no data parallelism."""


@dataclass(frozen=True)
class LoadPlan:
    """The model and head to load, and their limits.

    `width` and `context` are the most of a request; `attention` is SGLang's name of a
    backend, or "". `rank` is this process's of `tp`, which meet at `port`; one rank
    alone finds a port itself.
    """

    target: Path
    draft: Path
    drafts: bool
    dtype: str
    width: int
    steps: int
    topk: int
    batches: tuple[int, ...]
    context: int
    graphs: bool
    attention: str
    seed: int
    tp: int = 1
    rank: int = 0
    port: int = 0

    @property
    def rows(self) -> int:
        """Requests of all batch sizes together."""
        return sum(self.batches) + max(self.batches)

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one request, drafted tokens included."""
        return self.context + 4 * (self.width + self.steps * self.topk)

    @property
    def tokens(self) -> int:
        """Tokens in the KV pool."""
        return (max(self.batches) + 1) * self.max_request_tokens + 64 * self.rows


def prepare_process(device: torch.device, rank: int, tp: int) -> None:
    """Make a process SGLang's rank on a device: a GPU each, or a core each."""
    if device.type == "cuda":
        torch.cuda.set_device(rank)
    if device.type == "cpu" and tp > 1:
        cores = "|".join(map(str, range(tp)))
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", cores)
    if device.type == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        os.environ["TORCHDYNAMO_DISABLE"] = "1"


def server_options(plan: LoadPlan, device: torch.device) -> dict[str, Any]:
    """The options of a server that measures the same."""
    return {
        "model_path": str(plan.target),
        "load_format": load_format(plan.target),
        "dtype": plan.dtype,
        "skip_tokenizer_init": True,
        "random_seed": plan.seed,
        "tp_size": plan.tp,
        "disable_radix_cache": True,
        "max_running_requests": plan.rows,
        "max_total_tokens": plan.tokens,
        "context_length": plan.max_request_tokens,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(plan.draft),
        "speculative_draft_load_format": load_format(plan.draft),
        "speculative_num_steps": plan.steps,
        "speculative_eagle_topk": plan.topk,
        "speculative_num_draft_tokens": plan.width,
        "watchdog_timeout": 3600,
        **(_cpu_options() if device.type == "cpu" else _cuda_options(plan)),
    }


def _cpu_options() -> dict[str, Any]:
    return {
        "device": "cpu",
        "attention_backend": "intel_amx",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.3,
    }


def _cuda_options(plan: LoadPlan) -> dict[str, Any]:
    """Routes can be forced only where `select_experts` hands them to the kernels."""
    graphs = {
        "cuda_graph_bs_decode": list(plan.batches),
        "disable_prefill_cuda_graph": True,
    }
    return {
        "moe_runner_backend": "triton",
        "disable_shared_experts_fusion": True,
        **({"attention_backend": plan.attention} if plan.attention else {}),
        **(graphs if plan.graphs else {"disable_cuda_graph": True}),
    }


def load_workers(
    plan: LoadPlan, device: torch.device, before_graphs: Callable[[Any], None]
) -> tuple[Any, Any]:
    """SGLang's model runner of the target, and its EAGLE worker, None without a head.

    `before_graphs` gets the model runner before anything is captured.
    """
    from sglang.srt.server_args import PortArgs, ServerArgs

    args = ServerArgs(**server_options(plan, device))
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    _publish(args, plan.rank)
    from sglang.srt.entrypoints.engine import _set_envs_and_config

    _set_envs_and_config(args)
    port = plan.port or PortArgs.init_new(args).nccl_port
    scheduler = _scheduler(args, port, plan)
    scheduler.init_tp_model_worker()
    scheduler.draft_worker = None
    if plan.drafts:
        scheduler.maybe_init_draft_worker()
    scheduler.init_memory_pools()
    scheduler.init_all_attention_backends()
    before_graphs(scheduler.tp_worker.model_runner)
    scheduler.init_all_cuda_graphs()
    return scheduler.tp_worker.model_runner, scheduler.draft_worker


def _publish(args: Any, rank: int) -> None:
    """Make the options the process's own, as a scheduler's process does first."""
    try:
        from sglang.srt import runtime_context
        from sglang.srt.runtime_context import publish
    except ImportError:
        return
    if "ranks" not in inspect.signature(publish).parameters:
        publish(args, role="scheduler")
        return
    world = runtime_context.spawn_world_rank(args, tp_rank=rank, pp_rank=0)
    ranks = runtime_context.SpawnRanks(world_rank=world, gpu_id=rank)
    publish(args, role="scheduler", ranks=ranks)


def _scheduler(args: Any, nccl_port: int, plan: LoadPlan) -> Any:
    """A scheduler with just what its methods that build workers read."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    scheduler = object.__new__(Scheduler)
    scheduler.server_args, scheduler.nccl_port = args, nccl_port
    scheduler.spec_algorithm = SpeculativeAlgorithm.EAGLE3
    scheduler.init_model_config()
    _parallel(scheduler, plan)
    scheduler.init_moe_gemm_config()
    return scheduler


def _parallel(scheduler: Any, plan: LoadPlan) -> None:
    """A rank of tensor parallelism, and one of all else, in the way of this version."""
    try:
        from sglang.srt.distributed.parallel_state_wrapper import ParallelState
    except ImportError:
        from sglang.srt.managers.scheduler import bootstrap
        from sglang.srt.runtime_context import get_device

        bootstrap.init_parallel_runtime(
            server_args=scheduler.server_args,
            device=get_device().device,
            dist_port=scheduler.nccl_port,
        )
        bootstrap.init_layer_runtime(model_config=scheduler.model_config)
        return
    sizes = {f.name: int(f.name.endswith("size")) for f in fields(ParallelState)}
    ranks = dict.fromkeys(("tp_rank", "attn_tp_rank", "gpu_id"), plan.rank)
    of_tp = dict.fromkeys(("tp_size", "attn_tp_size"), plan.tp)
    state = {**sizes, **dict.fromkeys(NO_RANK), **ranks, **of_tp}
    scheduler.ps = ParallelState(**state)
