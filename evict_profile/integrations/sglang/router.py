"""Hooks around SGLang's router: expert budgets, and routes that are recorded or forced.

Within a budget, verifications activate at most B experts of each layer: the hook gives
the router a routing function. Only the plug-in's graphs have it, so a server that stops
truncating decodes as usual. A token's weight is the square root of its path
probability, 1 for a root (docs/explanation/moe-spec.md); captured graphs read it from a
buffer. Groups and biases of a router are kept, and shared experts beside the routed
ones are not in the budget.
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
from evict_profile.runtime.budget import (
    Groups,
    Ranking,
    check,
    holds_all,
    picking_order,
    route,
    scores_of,
)

ROUTER_TARGET = "sglang.srt.layers.moe.topk.select_experts"

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
        self._asked = 0
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
        forward, layers = model.forward, len(list(experts(model)))

        @functools.wraps(forward)
        def attached(*args: Any, **kwargs: Any) -> Any:
            batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[2]
            if not self._enabled or not batch.forward_mode.is_target_verify():
                return forward(*args, **kwargs)
            slots = batch.out_cache_loc
            weights = self._weights[: len(slots)] * (slots != PADDING_SLOT)
            with assigned(self, node_weights=weights, _asked=0):
                out = forward(*args, **kwargs)
                if self._asked < layers:
                    self._warn(f"{self._asked} of {layers} layers asked their router")
            return out

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
        self._asked += 1
        if (
            self.node_weights is not None
            and self._applies(tokens, kwargs)
            and not holds_all(tokens, config.top_k, self.budget, num_experts)
        ):
            config = dataclasses.replace(
                config,
                custom_routing_function=self._routing(config),
                use_grouped_topk=False,
                apply_routed_scaling_factor_on_output=False,
            )
        return original(hidden_states, router_logits, config, **kwargs)

    def _applies(self, rows: int, kwargs: dict[str, Any]) -> bool:
        """Whether a budget can be kept in this call; the first refusal is logged."""
        assert self.node_weights is not None
        more = sorted(k for k, v in kwargs.items() if v is not None and k != "layer_id")
        if rows != (tokens := len(self.node_weights)):
            more.append(f"{rows} rows for {tokens} tokens")
        if more:
            self._warn(f"a router is given {', '.join(more)}")
        return not more

    def _warn(self, reason: str) -> None:
        if not self._warned:
            logger.warning(
                "evict-profile: expert budget of %d not kept: %s", self.budget, reason
            )
            self._warned = True

    def _routing(self, config: Any) -> Callable[..., tuple[Tensor, Tensor]]:
        """SGLang's routing of this layer, within the budget."""
        bias, groups = config.correction_bias, _groups(config)
        ranking, scoring = _ranking(config), _scoring(config)
        scaled = config.apply_routed_scaling_factor_on_output
        scale = config.routed_scaling_factor if scaled else 1.0

        def routing(
            hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool
        ) -> tuple[Tensor, Tensor]:
            scores = scores_of(gating_output, scoring)
            weights, ids = route(
                scores,
                topk,
                self.budget,
                renormalise=renormalize,
                node_weights=self.node_weights,
                ranking=ranking,
                order=picking_order(scores, bias, groups),
            )
            return (weights * scale).contiguous(), ids.int().contiguous()

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


def _groups(config: Any) -> Groups | None:
    if not config.use_grouped_topk or config.num_expert_group <= 1:
        return None
    return Groups(config.num_expert_group, config.topk_group)


def _scoring(config: Any) -> Any:
    """A grouped router with a bias scores by sigmoid, whatever it is configured for."""
    if config.use_grouped_topk and config.correction_bias is not None:
        return "sigmoid"
    return config.scoring_func


def _ranking(config: Any) -> Ranking:
    """What was found best on such a router (docs/explanation/moe-spec.md)."""
    is_plain = config.correction_bias is None and not config.use_grouped_topk
    return "top-k" if is_plain and config.scoring_func == "softmax" else "gate"


def refusal(config: Any) -> str | None:
    """Why a budget cannot be kept with a router's configuration; None if it can."""
    scoring = _scoring(config)
    reasons = {
        "it has a routing function of its own": config.custom_routing_function
        is not None,
        "shared experts take places in its top k": _shared_slots(config) > 0,
        f"its scores by {scoring} are not tried": scoring not in ("softmax", "sigmoid"),
        "it scales weights that it does not renormalise": (
            config.apply_routed_scaling_factor_on_output and not config.renormalize
        ),
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


class RouteBuffers:
    """A buffer of routes for each MoE layer, int32 [tokens, k], and their hook.

    All MoE backends behind `select_experts` read the ids that it returns. While
    `forcing`, these are the buffer itself: a graph that is captured then reads what
    `force` sets, and launches what a server's does. While `recording`, the buffer gets
    the router's ids. `forced` has the layers, and numbers of tokens, that read it.
    """

    def __init__(self) -> None:
        self.recording = self.forcing = False
        self.ids: dict[int, Tensor] = {}
        self.forced: set[tuple[int, int]] = set()

    def allocate(
        self, layers: list[int], tokens: int, top_k: int, device: torch.device | str
    ) -> None:
        options: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self.ids = {layer: torch.zeros(tokens, top_k, **options) for layer in layers}

    def select(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The hook around `select_experts`; weights stay the router's own."""
        out = original(*args, **kwargs)
        layer, tokens = kwargs.get("layer_id"), len(out.topk_ids)
        if layer not in self.ids or tokens > len(self.ids[layer]):
            return out
        ids = self.ids[layer][:tokens]
        if self.forcing:
            self.forced.add((layer, tokens))
            # No copy on a GPU, where routers give int32 as well.
            return out._replace(topk_ids=ids.to(out.topk_ids.dtype))
        if self.recording:
            ids.copy_(out.topk_ids)
        return out

    def force(self, routes: Tensor) -> None:
        """Set the routes of the next forwards: int [layers, tokens, k], in order."""
        for layer, rows in zip(sorted(self.ids), routes, strict=True):
            self.ids[layer][: len(rows)].copy_(rows)

    def unforced(self, tokens: int) -> list[int]:
        """Layers whose kernels were never given the buffer for so many tokens."""
        return [layer for layer in self.ids if (layer, tokens) not in self.forced]

    def routes(self, tokens: int) -> Tensor:
        """Experts of the last forward: int32 [layers, tokens, k], on the CPU."""
        rows = [self.ids[layer][:tokens] for layer in sorted(self.ids)]
        return torch.stack(rows).cpu()
