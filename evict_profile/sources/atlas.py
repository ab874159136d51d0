"""All that a source can price, side by side: every model on every GPU and engine.

Of each kernel the newest version, on as few GPUs as hold the weights. Nothing is
fitted: steps are sums of parts, as in the cells that a table is fitted to. What a gate
refuses is kept with its reason.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from evict_profile.config.model import ModelSpec, known_models, load_model
from evict_profile.errors import ConfigError
from evict_profile.physics import common_weights, non_moe_weights
from evict_profile.sources.aiconfigurator import Source, version_order
from evict_profile.sources.compose import judge
from evict_profile.sources.composer import BATCHES, WIDTHS, Composer
from evict_profile.sources.experts import BYTES_PER_VALUE, Pair
from evict_profile.sources.offers import pairs, shape_of

CONTEXT = 1024
SHARDINGS = (1, 2, 4, 8)
FILLED = 0.85
"""Share of the memory that weights may take; the rest is cache and working space."""


def atlas(source: Source, chosen: Iterable[tuple[ModelSpec, Pair]]) -> pd.DataFrame:
    """One row a pair, batch and width; one without a price where a gate refused.

    Columns: the pair's, `model`, `refused`, `bandwidth_share`, `batch`, `width`,
    `step_us`, and C(n)/C(1) as `by_union`, `no_experts` and `all_alike`.
    """
    rows = []
    for model, pair in chosen:
        facts = {"model": model.name, **pair._asdict()}
        composer = Composer.of(source, pair, model)
        try:
            gates = judge(composer, (CONTEXT,))
        except ConfigError as error:
            rows.append({**facts, "refused": f"rows: {error}"})
            continue
        facts["bandwidth_share"] = composer.experts.bandwidth_share
        failed = [f"{g.name}: {g.message}" for g in gates if not g.passed]
        if failed:
            rows.append({**facts, "refused": failed[0]})
        else:
            rows += [{**facts, "refused": "", **row} for row in _steps(composer)]
    return pd.DataFrame(rows).drop(columns="shape")


def choose(source: Source) -> list[tuple[ModelSpec, Pair]]:
    """The pairs of every model that has a file and rows, at the sharding that fits."""
    specs = [load_model(str(path)) for path in known_models()]
    every = pairs(source)
    found = []
    for model in specs:
        own = [pair for pair in every if pair.shape == shape_of(model)]
        found += [(model, pair) for pair in _newest(_fitting(source, model, own))]
    return found


def _fitting(source: Source, model: ModelSpec, own: list[Pair]) -> Iterator[Pair]:
    for pair in own:
        held = FILLED * source.facts(pair.gpu).memory_gb
        least = next((n for n in SHARDINGS if _weights_gb(model, pair) <= n * held), 0)
        if pair.ep == 1 and pair.tp == least:
            yield pair


def _newest(own: Iterable[Pair]) -> list[Pair]:
    """Of each GPU, engine, data type and kernel."""
    latest: dict[tuple[str, ...], Pair] = {}
    for pair in sorted(own, key=lambda pair: version_order(pair.version)):
        latest[pair.gpu, pair.engine, pair.dtype, pair.kernel] = pair
    return list(latest.values())


def _weights_gb(model: ModelSpec, pair: Pair) -> float:
    """Experts in the pair's data type, all else in bf16."""
    expert = 3 * model.hidden_size * model.moe.expert_width
    experts = model.moe_layers * model.moe.num_experts * expert
    rest = model.moe_layers * common_weights(model) + non_moe_weights(model)
    return (experts * BYTES_PER_VALUE[pair.dtype] + 2 * rest) / 1e9


def _steps(composer: Composer) -> Iterator[dict[str, float]]:
    """Each batch and width, by the union of uniform routing and by two dummies."""
    top_k = composer.model.moe.top_k
    for batch in BATCHES:
        tokens = np.array(WIDTHS) * batch
        uniform = [composer.model.uniform_union(t) for t in tokens]
        curves = {
            name: _curve(composer, tokens, unions, batch)
            for name, unions in (
                ("by_union", uniform),
                ("no_experts", [0.0] * len(tokens)),
                ("all_alike", [float(top_k)] * len(tokens)),
            )
        }
        for place, width in enumerate(WIDTHS):
            times = {name: us[place] / us[0] for name, us in curves.items()}
            step_us = curves["by_union"][place]
            yield {"batch": batch, "width": width, "step_us": step_us, **times}


def _curve(
    composer: Composer, tokens: np.ndarray, unions: list[float], batch: int
) -> list[float]:
    places = zip(tokens.tolist(), unions, strict=True)
    return [composer.step(t, u, CONTEXT, batch).us for t, u in places]
