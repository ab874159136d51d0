"""Parameters of a `config.json` by transformers' own class, on the meta device."""

import re
from pathlib import Path

STORED = Path(__file__).with_name("parameters.json")
ROUTED = re.compile(r"(^|\.)experts\.")
LEFT_OUT = re.compile(r"(^|\.)(vision|visual|audio|mtp|multi_modal|embed_vision)")
"""Parameters outside the language model."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")


def counted(content):
    """Total and active parameters; None where this transformers lacks the family."""
    import torch
    import transformers
    from transformers.models.auto import configuration_auto

    if content["model_type"] not in configuration_auto.CONFIG_MAPPING:
        return None
    whole = configuration_auto.CONFIG_MAPPING[content["model_type"]].from_dict(content)
    text = whole.get_text_config(decoder=True)
    makers = [(transformers.AutoModelForCausalLM, text)]
    if text is not whole:
        makers.insert(0, (transformers.AutoModelForImageTextToText, whole))
    for maker, config in makers:
        try:
            with torch.device("meta"):
                model = maker.from_config(config)
        except ValueError:  # The class of the other maker.
            continue
        model.tie_weights()
        sizes = {n: p.numel() for n, p in model.named_parameters()}
        kept = {n: size for n, size in sizes.items() if not LEFT_OUT.search(n)}
        routed = sum(size for n, size in kept.items() if ROUTED.search(n))
        experts, top_k = _first(text, EXPERTS), _first(text, TOP_K)
        total = sum(kept.values())
        return total, total - routed + routed * top_k // experts
    return None


def _first(config, names):
    """The first of the attributes that counts something; of a list, its first item."""
    stated = (getattr(config, name, None) for name in names)
    firsts = (value[0] if isinstance(value, list) else value for value in stated)
    return next(value for value in firsts if type(value) is int and value)
