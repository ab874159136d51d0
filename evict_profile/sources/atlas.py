"""All that a source can price, side by side: every model on every GPU and engine.

Of each kernel the newest version, on as few GPUs as hold the weights. A pair counts as
composed if `compose` would make a table of it: cells are fitted, and the fit's gates
asked too. Steps are sums of parts, as in those cells. What a gate refuses is kept with
its reason.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from evict_profile import __version__
from evict_profile.config.model import ModelSpec, known_models, load_model
from evict_profile.errors import ConfigError, Interrupted, StoreError
from evict_profile.io import write_atomically
from evict_profile.physics import common_weights, non_moe_weights
from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, Source, version_order
from evict_profile.sources.compose import fit_cells, fit_gates, judge
from evict_profile.sources.composer import (
    BATCHES,
    CONTEXTS,
    WIDTHS,
    Composer,
    sweep_of,
)
from evict_profile.sources.pairs import Pair, pairs, shape_of

CONTEXT = 1024
PAIR = ("model", "gpu", "engine", "version", "kernel", "dtype", "tp", "ep")
"""Columns that tell pairs apart."""
STEP = ("batch", "width", "step_us", "by_union", "no_experts", "all_alike")
COLUMNS = (*PAIR, "release", "refused", "bandwidth_share", *STEP)
RELEASE = f"evict-profile {__version__}, {PACKAGE} {VERSION}"

SHARDINGS = (1, 2, 4, 8)
FILLED = 0.85
"""Share of the memory that weights may take; the rest is cache and working space."""


def atlas(
    source: Source, chosen: Iterable[tuple[ModelSpec, Pair]], kept: Path
) -> pd.DataFrame:
    """One row a pair, batch and width; one without a price where a gate refused.

    `COLUMNS`; of them `by_union`, `no_experts` and `all_alike` are C(n)/C(1).

    Args:
        source: the rows.
        chosen: what is priced; a pair takes seconds.
        kept: where every pair is kept when it is done; what is there of this release
            is not done again.
    """
    rows = _read(kept)
    done = {tuple(row[name] for name in PAIR) for row in rows}
    try:
        for model, pair in chosen:
            facts = {"model": model.name, "release": RELEASE, **pair._asdict()}
            del facts["shape"]
            if tuple(facts[name] for name in PAIR) not in done:
                composer = Composer.of(source, pair, model)
                rows += [{**facts, **own} for own in _judged(composer)]
                write_atomically(kept, _frame(rows).to_parquet)
    except KeyboardInterrupt as interruption:
        raise Interrupted(
            f"interrupted: {kept} keeps what is done, and the same command continues"
        ) from interruption
    return _frame(rows)


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))


def first_failures(steps: pd.DataFrame) -> pd.Series:
    """How many pairs each gate refused first; "" counts those that compose."""
    pairs = steps.drop_duplicates(PAIR)
    return pairs["refused"].str.partition(":")[0].value_counts()


def _judged(composer: Composer) -> list[dict[str, Any]]:
    """The rows of one pair: its steps, or why there are none."""
    try:
        gates = judge(composer, CONTEXTS)
    except ConfigError as error:
        return [{"refused": f"rows: {error}"}]
    if all(gate.passed for gate in gates):
        gates += fit_gates(fit_cells(composer, sweep_of(CONTEXTS)))
    share = composer.experts.bandwidth_share
    failed = [f"{gate.name}: {gate.message}" for gate in gates if not gate.passed]
    if failed:
        return [{"refused": failed[0], "bandwidth_share": share}]
    return [{"refused": "", "bandwidth_share": share, **s} for s in _steps(composer)]


def _read(kept: Path) -> list[dict[str, Any]]:
    if not kept.is_file():
        return []
    try:
        rows = pd.read_parquet(kept).to_dict("records")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{kept}: is damaged ({error}); remove it, and all pairs are composed anew"
        ) from error
    named = [{str(name): value for name, value in row.items()} for row in rows]
    return [row for row in named if row.get("release") == RELEASE]


def check_replaceable(numbers: Path) -> None:
    """Check that a file to be written is missing, or an atlas's own."""
    try:
        own = not numbers.exists() or set(PAIR) <= {*pq.read_schema(numbers).names}
    except (OSError, ValueError):
        own = False
    if not own:
        raise StoreError(
            f"{numbers}: is there already, and no atlas's numbers, which go beside the "
            "page; choose another --out"
        )


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
    experts = model.moe_layers * model.moe.num_experts
    rest = model.moe_layers * common_weights(model) + non_moe_weights(model)
    return (experts * pair.tp * pair.bytes_per_expert + 2 * rest) / 1e9


def _steps(composer: Composer) -> Iterator[dict[str, float]]:
    """Each batch and width, by the union of uniform routing and by two dummies."""
    model = composer.model
    unions: dict[str, Callable[[int], float]] = {
        "by_union": model.uniform_union,
        "no_experts": lambda tokens: 0.0,
        "all_alike": lambda tokens: float(model.moe.top_k),
    }
    for batch in BATCHES:
        tokens = [width * batch for width in WIDTHS]
        us = {
            name: [composer.step(t, union(t), CONTEXT, batch).us for t in tokens]
            for name, union in unions.items()
        }
        for place, width in enumerate(WIDTHS):
            times = {name: own[place] / own[0] for name, own in us.items()}
            step_us = us["by_union"][place]
            yield {"batch": batch, "width": width, "step_us": step_us, **times}
