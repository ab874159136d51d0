"""Expert budgets inside SGLang: verifications activate at most B experts of each layer.

During verification the hook gives the router a routing function within the budget. Only
the plug-in's graphs have it, so a server that stops truncating decodes as usual. A
token's weight is the square root of its path probability, 1 for a root
(docs/research/budgets.md); captured graphs read it from a buffer.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.compat import (
    assigned,
    check_routes,
    experts,
    option,
)
from evict_profile.runtime.budget import check, holds_all, probabilities_of, route

PADDING_SLOT = 0
"""The cache slot of padding rows in SGLang's graphs, and of no other rows."""

logger = logging.getLogger("evict_profile.sglang")


class BudgetHook:
    """The hook around `select_experts`; it does nothing until `attach`.

    `node_weights` are of the verification that runs or is captured; else None.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.node_weights: Tensor | None = None
        self._enabled = self._warned = False
        self._weights = torch.ones(0)

    def allocate(self, tokens: int, device: torch.device | str) -> None:
        self._weights = torch.ones(tokens, device=device)

    def set_token_weights(self, path_prob: Tensor) -> None:
        """Set the weights of the next verification: roots and nodes, `path_prob` [B,
        M].
        """
        requests, nodes = path_prob.shape
        rows = self._weights[: requests * (nodes + 1)].view(requests, nodes + 1)
        rows[:, 0] = 1.0
        rows[:, 1:] = path_prob.sqrt()

    def enabled(self) -> AbstractContextManager[None]:
        return assigned(self, _enabled=True)

    def attach(self, model_runner: Any) -> None:
        """Act in a target's verifications; warns that this is lossy."""
        check_model(model_runner, self.budget)
        model = model_runner.model
        forward = model.forward

        @functools.wraps(forward)
        def attached(*args: Any, **kwargs: Any) -> Any:
            batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[2]
            if not self._enabled or not batch.forward_mode.is_target_verify():
                return forward(*args, **kwargs)
            slots = batch.out_cache_loc
            weights = self._weights[: len(slots)] * (slots != PADDING_SLOT)
            with assigned(self, node_weights=weights):
                return forward(*args, **kwargs)

        model.forward = attached
        logger.warning(
            "evict-profile: expert budget of %d in every verification: LOSSY, what is "
            "decoded is no longer the target's own output",
            self.budget,
        )

    def budgeted(
        self,
        original: Callable[..., Any],
        hidden_states: Tensor,
        router_logits: Tensor,
        topk_config: Any,
        **kwargs: Any,
    ) -> Any:
        """Route within the budget, during verifications; else as SGLang does."""
        config, (tokens, num_experts) = topk_config, router_logits.shape
        if (
            self.node_weights is not None
            and self._applies(tokens, kwargs)
            and not holds_all(tokens, config.top_k, self.budget, num_experts)
        ):
            routing = self._routing(config.scoring_func)
            config = dataclasses.replace(config, custom_routing_function=routing)
        return original(hidden_states, router_logits, config, **kwargs)

    def _applies(self, rows: int, kwargs: dict[str, Any]) -> bool:
        """Whether a budget can be kept in this call; the first refusal is logged."""
        assert self.node_weights is not None
        more = sorted(k for k, v in kwargs.items() if v is not None and k != "layer_id")
        if rows != (tokens := len(self.node_weights)):
            more.append(f"{rows} rows for {tokens} tokens")
        if more and not self._warned:
            logger.warning(
                "evict-profile: expert budget of %d not kept: a router is given %s",
                self.budget,
                ", ".join(more),
            )
            self._warned = True
        return not more

    def _routing(self, scoring: Any) -> Callable[..., tuple[Tensor, Tensor]]:

        def routing(
            hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool
        ) -> tuple[Tensor, Tensor]:
            weights, ids = route(
                probabilities_of(gating_output, scoring),
                topk,
                self.budget,
                renormalise=renormalize,
                node_weights=self.node_weights,
                ranking="top-k",
            )
            return weights.contiguous(), ids.int().contiguous()

        return routing


def check_model(model_runner: Any, budget: int) -> None:
    from sglang.srt.layers.moe.topk import TopK

    modules = model_runner.model.modules()
    routers = [m.topk_config for m in modules if isinstance(m, TopK)]
    layers = list(experts(model_runner.model))
    if not layers or len(routers) != len(layers):
        raise ConfigError(
            "an expert budget needs a router that can be wrapped in each MoE layer; "
            f"this model has {len(routers)} for {len(layers)} layers: unset "
            "EVICT_PROFILE_EXPERT_BUDGET"
        )
    if option(model_runner.server_args, "ep_size") > 1:
        raise ConfigError(
            "no expert budget under expert parallelism, where a router is also given "
            "padding and placements: set --ep-size 1"
        )
    check_routes(model_runner)
    for layer, config in zip(layers, routers, strict=True):
        check(config.top_k, budget, layer.num_experts)
        if reason := refusal(config):
            raise ConfigError(f"no expert budget for this model: {reason}")


def refusal(config: Any) -> str | None:
    """Why a budget cannot be kept with a router's configuration; None if it can."""
    reasons = {
        "it picks groups of experts first, and those of a token may hold fewer kept "
        "experts than it runs": config.use_grouped_topk,
        "it picks by a biased score but weighs by the plain one, and which of the two "
        "should rank experts nobody has measured": config.correction_bias is not None,
        "it has a routing function of its own": config.custom_routing_function
        is not None,
        "shared experts take places in its top k": _shared_slots(config) > 0,
        f"it scores by {config.scoring_func}, of which no distribution over experts "
        "follows": config.scoring_func not in ("softmax", "sigmoid"),
        "it weighs by plain sigmoid scores, which a budget would have to rescale": (
            config.scoring_func == "sigmoid" and not config.renormalize
        ),
        "it scales the weights itself": config.apply_routed_scaling_factor_on_output,
        "its output is not in SGLang's standard format": (
            getattr(config.output_format, "name", "STANDARD") != "STANDARD"
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _shared_slots(config: Any) -> int:
    """Shared experts in the top k; 0.5.23 renamed the field."""
    if hasattr(config, "num_shared_topk_slots"):
        return int(config.num_shared_topk_slots)
    return int(config.num_fused_shared_experts)
