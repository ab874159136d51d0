"""What was read of a model: one line, or a table."""

from rich.console import Console

from evict_profile.config.model import BYTES_PER_VALUE, AttentionSpec, ModelSpec
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.records import to_mapping
from evict_profile.report.console import Rows, print_notes, print_rows


def model_line(model: ModelSpec) -> str:
    """ "qwen3-30b-a3b: 128 experts, top 8, 48 MoE layers of 48, hidden 2,048 ..."."""
    moe = model.moe
    return (
        f"{model.name}: {moe.num_experts} experts, top {moe.top_k}, "
        f"{model.moe_layers} MoE layers of {model.num_layers}, "
        f"hidden {model.hidden_size:,}, expert width {moe.expert_width:,}, "
        f"{_attention(model.attention)}, {_stored(model)}, "
        f"{_amount(model.total_parameters)} parameters, "
        f"{_amount(model.active_parameters)} active"
    )


def show_model(console: Console, model: ModelSpec, as_json: bool) -> None:
    """Sizes, counts, and reservations, which are `notes`."""
    counts = {
        "moe_layers": model.moe_layers,
        "published_dtype": _stored(model),
        "published_bytes_per_expert": _bytes_per_expert(model),
        "total_parameters": model.total_parameters,
        "active_parameters": model.active_parameters,
    }
    caveats = model.caveats(None)
    if as_json:
        say(console, json_of(to_mapping(model) | counts | {"notes": caveats}))
        return
    print_rows(console, Rows(("", "value"), _cells(model), ("value",)), model.name)
    print_notes(console, caveats)
    say(console, f"source: {model.source}")


def _cells(model: ModelSpec) -> list[tuple[str, object]]:
    moe, own = model.moe, model.attention
    rule = f"{own.sliding_window:,} tokens in one of {own.sliding_every} layers"
    kinds = [
        (
            f"{each.layers} {each.kind} layers".replace("none", "attention-free"),
            f"{_amount(each.weights)} weights each"
            + f", {each.window:,} tokens" * bool(each.window)
            + f", a state of {each.state:,} values" * bool(each.state),
        )
        for each in model.other_layers
    ]
    cells: list[tuple[str, object]] = [
        ("experts", moe.num_experts),
        ("top-k", moe.top_k),
        ("groups", f"{moe.groups_kept} of {moe.groups} kept" * (moe.groups > 1)),
        ("router", moe.router),
        ("expert width", f"{moe.expert_width:,}" + ", not gated" * (not moe.gated)),
        ("expert input", f"{moe.expert_hidden:,}" * bool(moe.expert_hidden)),
        ("shared experts' width", f"{moe.shared_width:,}" * bool(moe.shared_width)),
        ("hidden size", f"{model.hidden_size:,}"),
        ("MoE layers", f"{model.moe_layers} of {model.num_layers}"),
        ("dense layers", model.dense_layers or ""),
        ("dense width", f"{model.dense_width:,}" * bool(model.dense_width)),
        (f"{model.full_layers or 'no'} full attention layers", _attention(own)),
        ("window", rule * bool(own.sliding_window)),
        *kinds,
        ("vocabulary", f"{model.vocab_size:,}" + ", tied" * model.tied_embeddings),
        ("MTP layers", model.mtp_layers or ""),
        ("published expert weights", _stored(model)),
        ("bytes of an expert", f"{_bytes_per_expert(model):,}"),
        ("parameters", _amount(model.total_parameters)),
        ("active parameters", _amount(model.active_parameters)),
    ]
    return [cell for cell in cells if cell[1] != ""]


def _attention(own: AttentionSpec) -> str:
    if own.kind == "mla":
        heads = f"mla {own.num_heads} x {own.head_dim}"
        return f"{heads}, latent {own.kv_lora_rank} + {own.qk_rope_dim}"
    return f"gqa {own.num_heads}/{own.num_kv_heads} x {own.head_dim}"


def _stored(model: ModelSpec) -> str:
    """The published format of experts; a GGUF's, and float32, are in `dtype`."""
    stored = model.checkpoint_dtype
    return model.dtype if stored == "bfloat16" else stored


def _bytes_per_expert(model: ModelSpec) -> int:
    return round(model.weights_per_expert * BYTES_PER_VALUE[_stored(model)])


def _amount(number: int) -> str:
    return f"{number / 1e9:,.1f} B" if number >= 1e9 else f"{number / 1e6:,.1f} M"
