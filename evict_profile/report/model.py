from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from evict_profile.config.model import BYTES_PER_VALUE, AttentionSpec, ModelSpec
from evict_profile.config.names import shape_note
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.records import to_mapping
from evict_profile.report.console import Rows, print_notes, print_rows


def model_line(model: ModelSpec, given: str = "") -> str:
    """ "qwen3-30b-a3b: 128 experts, top 8, 48 MoE layers of 48, hidden 2,048 ..."."""
    moe, note = model.moe, shape_note(given, model.name)
    return (
        f"{model.name}: {moe.num_experts} experts, top {moe.top_k}, "
        f"{model.moe_layers} MoE layers of {model.num_layers}, "
        f"hidden {model.hidden_size:,}, expert width {moe.expert_width:,}, "
        f"{_attention(model.attention)}, {model.stored_dtype}, "
        f"{_amount(model.total_parameters)} parameters, "
        f"{_amount(model.active_parameters)} active{'; ' * bool(note)}{note}"
    )


def show_model(console: Console, model: ModelSpec, as_json: bool, given: str) -> None:
    stored = model.stored_dtype
    counts = {
        "moe_layers": model.moe_layers,
        "full_attention_layers": model.full_layers,
        "checkpoint_dtype": stored,
        "checkpoint_bytes_per_expert": round(
            model.weights_per_expert * BYTES_PER_VALUE[stored]
        ),
        "total_parameters": model.total_parameters,
        "active_parameters": model.active_parameters,
    }
    caveats, content = model.caveats(None), to_mapping(model) | counts
    if not model.attention.sliding_window:
        del content["attention"]["sliding_every"]
    if as_json:
        say(console, json_of(content | {"notes": caveats}))
        return
    del content["name"], content["source"], content["notes"]
    title = model_line(model, given)
    print_rows(console, Rows(("", "value"), [*_cells(content)]), title)
    print_notes(console, caveats)
    say(console, f"source: {model.source}")


def _cells(content: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _cells(value, f"{where}{key}.")
        elif isinstance(value, list | tuple):
            for n, item in enumerate(value):
                yield from _cells(item, f"{where}{key}[{n}].")
        elif value:
            yield where + key, f"{value:,}" if type(value) is int else str(value)


def _attention(own: AttentionSpec) -> str:
    if own.kind == "mla":
        heads = f"mla {own.num_heads} x {own.head_dim}"
        return f"{heads}, latent {own.kv_lora_rank} + {own.qk_rope_dim}"
    return f"gqa {own.num_heads}/{own.num_kv_heads} x {own.head_dim}"


def _amount(number: int) -> str:
    return f"{number / 1e9:,.1f} B" if number >= 1e9 else f"{number / 1e6:,.1f} M"
