"""What routing within an expert budget adds to the layers of a verification.

In each layer of a real verification of a draft tree the model's own router and a
budgeted one run beside each other, in turns first, and the model's own is obeyed.
Caches are then as the experts of the layer before left them, and both see the same
machine. One sample is a whole forward: the time that the budgeted routers took beyond
the model's own, over the time of all layers with their own routers. Times are process
CPU time.

The small world's layers take milliseconds, so calls are a large share. Beside it one
layer of a served shape runs with random weights, its router and experts alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evict_profile.config import load_model
from evict_profile.records import to_mapping
from evict_profile.replay.policies import full_tree
from evict_profile.stats import Estimate, median_interval
from examples.small_world.engine.accept import greedy
from examples.small_world.engine.budget_rivals import Truncating
from examples.small_world.engine.budgets import MASS, RULES, SQRT_TOP_K, ExpertBudget
from examples.small_world.engine.engine import Engine
from examples.small_world.engine.layout import Layout
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.tree import Trees, TreeShape
from examples.small_world.engine.verifier import (
    Routing,
    Verified,
    Verifier,
    own_routing,
)
from runners.clock import now
from runners.torch_moe.attention import make_attention
from runners.torch_moe.model import MoeLayer
from runners.torch_moe.shape import RandomWeights, read_shape

BUDGET, PROMPT_TOKENS = 16, 128
TREE = TreeShape(depth=5, topk=8, nodes=60)
STEPS = 5
"""Forwards of each prompt, behind one that warms up."""

SERVED, ROUNDS = "qwen3-30b-a3b", 12
CPU = torch.device("cpu")

Sample = tuple[float, float, float]
"""Of a forward: the time beyond the model's own routers and that of all the other
routing, over that of the layers; and that, in microseconds."""

Routers = Callable[[Tensor | None, int, MoeLayer, Tensor], tuple[Tensor, Tensor]]
"""Experts and weights, by the weights of tokens and as `Routing`."""


@dataclass(frozen=True)
class Overhead:
    """Shares of the time of all layers with the model's own routers.

    Attributes:
        share: beyond the model's own routers; the median over forwards.
        quartiles: of the same.
        whole: all of the budgeted routing, median.
    """

    routing: str
    share: Estimate
    quartiles: tuple[float, float]
    whole: float
    layers_ms: float
    on: str


class TimedLayers(Verifier):
    """Adds up the time of its layers."""

    layers_us = 0.0

    def run_layer(
        self, index: int, x: Tensor, layout: Layout, routing: Routing = own_routing
    ) -> tuple[Tensor, Tensor]:
        begun = now(x.device)
        found = super().run_layer(index, x, layout, routing)
        self.layers_us += (now(x.device) - begun).us
        return found


@dataclass
class BothRouters:
    """A budget hook that runs other routers beside the model's, which are obeyed."""

    others: Routers
    exponent: float = 0.0
    own_us: float = 0.0
    others_us: float = 0.0
    forwards: int = 0
    weights: Tensor | None = field(default=None, init=False)

    def __call__(
        self, engine: Engine, trees: Sequence[Trees], rerun: Callable[[], Verified]
    ) -> Routing:
        self.forwards += 1
        if self.exponent:
            chances = [p for t in trees for p in (1.0, *t.path_prob[0].tolist())]
            self.weights = torch.tensor(chances) ** self.exponent
        return self.both

    def both(self, index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first of the two differs from layer to layer and forward to forward."""
        others_first = (index + self.forwards) % 2 == 1
        begun = now(x.device)
        if others_first:
            self.others(self.weights, index, layer, x)
        else:
            found = layer.router(x)
        between = now(x.device)
        if others_first:
            found = layer.router(x)
        else:
            self.others(self.weights, index, layer, x)
        first_us, second_us = (between - begun).us, (now(x.device) - between).us
        self.own_us += second_us if others_first else first_us
        self.others_us += first_us if others_first else second_us
        return found

    def sample(self, layers_us: float) -> Sample:
        """Beside layers that took so long with the model's own routers."""
        beyond_us = self.others_us - self.own_us
        return beyond_us / layers_us, self.others_us / layers_us, layers_us


def model_router(
    weights: Tensor | None, index: int, layer: MoeLayer, x: Tensor
) -> tuple[Tensor, Tensor]:
    return layer.router(x)


def hooks(budget: int = BUDGET) -> dict[str, BothRouters]:
    """Fresh hooks, by what routes beside the model."""
    mass, sqrt = (ExpertBudget(budget, **RULES[rule]) for rule in (MASS, SQRT_TOP_K))
    return {
        "the model's own router again": BothRouters(model_router),
        MASS: BothRouters(mass.route),
        SQRT_TOP_K: BothRouters(sqrt.route, sqrt.exponent),
        "truncation": BothRouters(Truncating(budget).route),
    }


def measure_overheads(world: Path, prompts: int) -> Iterator[Overhead]:
    """Of forwards behind so many prompts of code and of prose."""
    torch.set_num_threads(1)
    session = TraceSession(world, TREE, PROMPT_TOKENS)
    samples: dict[str, list[tuple[float, float, float]]] = {
        name: [] for name in hooks()
    }
    for workload in session.held_out.streams:
        for prompt in session.held_out.prompts(workload, prompts, PROMPT_TOKENS):
            for name, own in forwards(session, prompt).items():
                samples[name] += own
    yield from summaries(samples, f"small world, B = {BUDGET}, {TREE.nodes + 1} tokens")


def summaries(samples: Mapping[str, Sequence[Sample]], on: str) -> Iterator[Overhead]:
    for name, own in samples.items():
        added, whole, layers_us = np.array(own).T
        low, high = np.quantile(added, [0.25, 0.75])
        yield Overhead(
            name,
            median_interval(added),
            (float(low), float(high)),
            float(np.median(whole)),
            float(np.median(layers_us)) / 1e3,
            on,
        )


@torch.inference_mode()
def of_served_shape(model: str = SERVED, rounds: int = ROUNDS) -> Iterator[Overhead]:
    """Of one MoE layer without its attention, float32, random weights and tokens."""
    torch.set_num_threads(1)
    spec = to_mapping(load_model(model)) | {"dtype": "float32"}
    shape, noise = read_shape(spec, 1), RandomWeights(CPU, torch.float32, 0)
    layer = MoeLayer(shape, make_attention(shape, 0, (1, 1), noise), noise)
    tokens, samples = TREE.nodes + 1, dict[str, list[Sample]]()
    for step in range(1 + rounds):
        x = torch.randn(tokens, shape.hidden)
        for name, hook in hooks(shape.moe.num_experts // 4).items():
            hook.weights = torch.rand(tokens) if hook.exponent else None
            hook.forwards = step
            begun = now(x.device)
            layer.experts(x, *hook.both(0, layer, x))
            layer_us = (now(x.device) - begun).us - hook.others_us
            if step:
                samples.setdefault(name, []).append(hook.sample(layer_us))
    on = f"{model}, one layer without attention, B = {shape.moe.num_experts // 4}"
    yield from summaries(samples, f"{on}, {tokens} tokens")


@torch.inference_mode()
def forwards(session: TraceSession, prompt: list[int]) -> dict[str, list[Sample]]:
    """Steps behind a prompt, where the ways to route take turns."""
    found: dict[str, list[Sample]] = {}
    engines = {
        name: engine_with(session, prompt, hook) for name, hook in hooks().items()
    }
    for step in range(1 + STEPS):
        for name, (engine, layers, hook) in engines.items():
            layers.layers_us = hook.own_us = hook.others_us = 0.0
            engine.step(full_tree(TREE.nodes, TREE.depth))
            if step:
                layers_us = layers.layers_us - hook.others_us
                found.setdefault(name, []).append(hook.sample(layers_us))
    return found


def engine_with(
    session: TraceSession, prompt: list[int], hook: BothRouters
) -> tuple[Engine, TimedLayers, BothRouters]:
    engine = session.engine(1, (1 + STEPS) * (TREE.depth + 1), hook)
    layers = TimedLayers(session.checkpoint, 1, engine.room)
    engine.verifier = layers
    engine.admit(prompt, greedy, 0)
    return engine, layers, hook
