"""What the plug-in's captured functions read of SGLang, in plain torch."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import torch


def drafted_lists(batch, topk, steps, device):
    """Scores, tokens and parents of each level, as SGLang organizes them."""
    levels = steps - 1
    scores = [torch.rand(batch, 1, topk, device=device)]
    scores += [torch.rand(batch, topk, topk, device=device) for _ in range(levels)]
    sizes = {
        "tokens": [topk] + [topk**2] * levels,
        "parents": [topk + 1] + [topk] * levels,
    }
    tokens, parents = (
        [torch.zeros(batch, size, dtype=torch.int64, device=device) for size in of]
        for of in sizes.values()
    )
    return scores, tokens, parents


def organize(score_list, token_list, parents_list, draft_tokens):
    """As SGLang's `organize_draft_results`."""
    scores = torch.cat(score_list, dim=1).flatten(1)
    index = torch.topk(scores, draft_tokens - 1, dim=-1).indices.sort().values
    tokens = torch.cat(token_list, dim=1).gather(1, index)
    return torch.cat(parents_list[:-1], dim=1), index, tokens


def chain_drafter(forward, levels):
    """A drafter of one token a step, whose runner's `forward` gives its logits."""
    return SimpleNamespace(
        topk=1,
        draft_runner=SimpleNamespace(forward=forward),
        cuda_graph_runner_for_draft_extend=None,
        speculative_num_steps=levels,
    )


def chain_batch(topk_p):
    mode = SimpleNamespace(is_idle=lambda: False)
    return SimpleNamespace(spec_info=SimpleNamespace(topk_p=topk_p), forward_mode=mode)


class TopKOutput(NamedTuple):
    """SGLang's `StandardTopKOutput`."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor


@dataclass
class RouterConfig:
    """The fields of SGLang's `TopKConfig` that a budget reads."""

    top_k: int
    correction_bias: torch.Tensor | None = None
    use_grouped_topk: bool = False
    num_expert_group: int = 0
    topk_group: int = 0
    scoring_func: str = "softmax"
    apply_routed_scaling_factor_on_output: bool = False
    routed_scaling_factor: float | None = None
    renormalize: bool = True
    custom_routing_function: object = None


def select_by_config(hidden, logits, config, layer_id):
    """SGLang's `select_experts` with a routing function in its configuration."""
    routing = config.custom_routing_function
    return routing(hidden, logits, config.top_k, config.renormalize)
