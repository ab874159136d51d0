"""What each family of models names otherwise than most do: one row each.

`KEYS` lists by which keys a `config.json` may state a quantity, the first that is
stated counts. A row says only what no key of the config says.
"""

from typing import Literal, NamedTuple

KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "experts": (
        *("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    ),
    "top_k": (
        *("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
        *("moe_topk", "moe_k"),
    ),
    "expert_hidden": ("moe_latent_size", "routed_expert_hidden_size"),
    "dense_width": (
        *("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size"),
    ),
    "shared_experts": (
        *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        "num_shared_expert",
    ),
    "shared_width": (
        *("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
        *("share_expert_dim", "shared_intermediate_size"),
    ),
    "router": ("scoring_func", "score_function", "moe_router_activation_func"),
    "groups": ("n_group", "num_expert_group"),
    "groups_kept": ("topk_group",),
    "first_dense": (
        *("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    ),
    "moe_every": ("moe_layer_freq", "moe_layer_interval"),
    "blocks": ("layers_block_type", "hybrid_override_pattern"),
    "mtp_layers": (
        *("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"),
    ),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_global_key_value_heads", "num_key_value_heads"),
    "head_dim": ("global_head_dim", "head_dim"),
    "window_heads": ("swa_num_attention_heads", "num_attention_heads"),
    "window_kv_heads": ("swa_num_key_value_heads", "num_key_value_heads"),
    "window_head_dim": ("swa_head_dim", "head_dim"),
    "window_value_dim": ("swa_v_head_dim", "v_head_dim"),
    "linear_heads": ("linear_num_heads", "num_attention_heads"),
    "linear_head_dim": ("linear_head_dim", "head_dim"),
    "output_gate": ("attn_output_gate", "mla_use_output_gate"),
}


class Family(NamedTuple):
    """A row: where its config is silent, or has another name than most.

    Attributes:
        width: key of an expert's width.
        shared: key of the width of an MLP that runs beside the experts.
        router: where the config does not say.
        kind: "mla" where the config must describe a latent.
        window: which layers attend to a window where no list says so.
        linear: how the weights of a linear layer are counted.
        gated: whether an expert has a gate beside its two matrices.
    """

    width: str = "moe_intermediate_size"
    shared: str = ""
    router: Literal["softmax", "sigmoid"] = "softmax"
    kind: Literal["", "mla"] = ""
    qk_norm: bool = False
    window: Literal["", "everywhere", "alternate", "chunked"] = ""
    linear: Literal["", "gated_delta", "kda", "lightning"] = ""
    gated: bool = True


UNKNOWN = Family()
SIGMOID = Family(router="sigmoid")
QWEN_LINEAR = Family(qk_norm=True, linear="gated_delta")
KIMI_LINEAR = Family(router="sigmoid", linear="kda")
LATENT = Family(router="sigmoid", kind="mla")
INTERMEDIATE = Family(width="intermediate_size")
LLAMA4 = Family("intermediate_size", "intermediate_size", "sigmoid", window="chunked")

FAMILIES: dict[str, Family] = {
    "afmoe": SIGMOID._replace(qk_norm=True),
    "bailing_hybrid": KIMI_LINEAR,
    "bailing_moe": UNKNOWN,
    "bailing_moe_v2": SIGMOID._replace(qk_norm=True),
    "bailing_moe_v2_5": SIGMOID._replace(qk_norm=True, linear="lightning"),
    "deepseek_v2": Family(kind="mla"),
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    "deepseek_ref": SIGMOID,
    "deepseek_v4": SIGMOID,
    "dots1": SIGMOID._replace(qk_norm=True),
    "ernie4_5_moe": UNKNOWN,
    "exaone_moe": SIGMOID._replace(qk_norm=True),
    "gemma4_text": Family(shared="intermediate_size", qk_norm=True),
    "glm4_moe": SIGMOID,
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT,
    "gpt_oss": INTERMEDIATE._replace(window="alternate"),
    "hunyuan_v1_moe": UNKNOWN._replace(qk_norm=True),
    "hy_v3": SIGMOID._replace(qk_norm=True),
    "kimi_k2": LATENT,
    "kimi_linear": KIMI_LINEAR,
    "llama4_text": LLAMA4,
    "mimo_v2_flash": SIGMOID,
    "minimax_m2": INTERMEDIATE._replace(router="sigmoid", qk_norm=True),
    "minimax_m3": INTERMEDIATE._replace(router="sigmoid", qk_norm=True),
    "mixtral": INTERMEDIATE._replace(window="everywhere"),
    "nemotron_h": SIGMOID._replace(gated=False),
    "olmoe": INTERMEDIATE._replace(qk_norm=True),
    "qwen2_moe": UNKNOWN,
    "qwen3_5_moe_text": QWEN_LINEAR,
    "qwen3_moe": Family(qk_norm=True),
    "qwen3_next": QWEN_LINEAR,
    "qwen3_vl_moe_text": Family(qk_norm=True),
    "step3p7": SIGMOID._replace(qk_norm=True),
}
