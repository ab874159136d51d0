"""How far composed plain decoding is from served times of the same wheel.

`silicon_sample.csv` of AIConfigurator is its own sample of served times (InferenceX):
time per output token, and its growth with batch, beside what public rows compose to.

    python -m benchmarks.public_costs --from aiconfigurator_core-0.12.0-*.whl

A served request decodes 1,024 tokens of input and on average half of its output; only
engines without data parallelism on up to 8 GPUs are taken, at 4 to 64 requests. Engine
versions differ from those of the rows. Exit code 1 where `MOST` is exceeded.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks.common import command
from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.report.console import Rows, print_rows
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.compose import Composer, composer_of
from evict_profile.sources.gates import slope_gate
from evict_profile.sources.pairs import pairs, shape_of

SERVED = "aiconfigurator_core/systems/silicon_sample.csv"
MODELS = {
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
}
DTYPES = {"fp8": "fp8_block"}
MXFP4 = "w4a16_mxfp4"
"""What the sample calls fp8 and, of gpt-oss, nvfp4: the published checkpoints."""

BATCHES, INPUT, OUTPUTS = (4, 8, 16, 32, 64), 1024, (1024, 8192)
ACTIVATED = 0.78
"""Experts that real text activates beyond the first token's, over uniform routing."""

MOST = (0.13, 0.08)
"""Median errors of a step and its growth, good rows, real text's unions: 0.11
and 0.06 were measured."""

COSTS = ("uniform", "real text", "no experts")
console = Console()


@command
def main(arguments: Sequence[str]) -> int:
    """Print the errors; 1 where they exceed `MOST`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=None)
    rows = served(open_source(parser.parse_args(arguments).source))
    show_served(rows)
    good = passed(rows)
    grown = _growth(good)
    errors = (
        np.median(np.abs(found["real text"] / found["served"] - 1.0))
        for found in (good, grown)
    )
    return int(any(error > most for error, most in zip(errors, MOST, strict=True)))


def served(source: Source) -> pd.DataFrame:
    """One row a served time: composed beside it, and which gates its parts pass."""
    sample = pd.read_csv(BytesIO((source.root / SERVED).read_bytes()))
    plain = sample[
        (sample["mode"] == "agg")
        & sample["model_path"].isin(MODELS)
        & (sample["isl"] == INPUT)
        & sample["osl"].isin(OUTPUTS)
        & sample["batch_size"].isin(BATCHES)
        & (sample["attention_dp_size"].fillna(1) <= 1)
        & (sample["tp_size"] <= 8)
    ]
    by = ["system", "backend", "model_path", "moe_quant_mode", "tp_size", "moe_ep_size"]
    rows: list[dict[str, Any]] = []
    for place, own in track(list(plain.groupby(by, dropna=False)), console=console):
        try:
            composer = _composer(source, *place)
            rows += _compared(composer, own, "/".join(map(str, place)))
        except ConfigError as error:
            console.print(f"left out: {place}: {error}", soft_wrap=True)
    return pd.DataFrame(rows)


def _composer(
    source: Source,
    gpu: str,
    engine: str,
    path: str,
    quantised: object,
    tp: float,
    ep: float,
) -> Composer:
    model, groups = load_model(MODELS[path]), max(1, int(ep))
    dtype = MXFP4 if "gpt-oss" in path else DTYPES.get(str(quantised), str(quantised))
    asked = dtype, int(tp) // groups, groups
    known = [p for p in pairs(source, gpu, engine) if p.shape == shape_of(model)]
    found = [pair for pair in known if (pair.dtype, pair.tp, pair.ep) == asked]
    if not found:
        raise ConfigError(f"no rows of {dtype}, {shape_of(model)}, tp {tp}, ep {ep}")
    order = [version for _, version in source.engines(gpu, "moe")]
    newest = max(found, key=lambda pair: order.index(pair.version))
    composer = composer_of(source, [newest], model)
    if not composer.experts.identified:
        raise ConfigError(f"experts have no cost: {composer.experts.origin}")
    return composer


def _compared(
    composer: Composer, served: pd.DataFrame, deployment: str
) -> Iterator[dict[str, Any]]:
    gate = slope_gate(composer.experts)
    for row in served.itertuples():
        batch, context = int(row.batch_size), INPUT + int(row.osl) // 2
        place = {"deployment": deployment, "batch": batch, "osl": row.osl}
        costs = {
            name: composer.step(batch, union, context, batch).value / 1e3
            for name, union in _unions(composer, batch).items()
        }
        facts = {"slope": gate.passed, "near": bool(composer.parts.rows.stand_ins)}
        yield {**place, "served": row.silicon_tpot_ms, **costs, **facts}


def _unions(composer: Composer, batch: int) -> dict[str, float]:
    uniform, top_k = composer.model.uniform_union(batch), composer.model.moe.top_k
    return {
        "uniform": uniform,
        "real text": top_k + ACTIVATED * (uniform - top_k),
        "no experts": 0.0,
    }


def passed(rows: pd.DataFrame) -> pd.DataFrame:
    """Those whose experts pass their gate, and whose parts have rows of their own."""
    return rows[rows["slope"] & ~rows["near"]]


def show_served(rows: pd.DataFrame) -> None:
    """Errors of steps and of their growth, under each selection of rows."""
    cells, growths = [], []
    near = rows[rows["slope"] & rows["near"]]
    selections = {"all": rows, "good rows": passed(rows), "rows near by": near}
    for name, own in selections.items():
        grown = _growth(own)
        count = f"{len(own)}, {own['deployment'].nunique()}"
        cells.append((name, count, *(_error(own[c] / own["served"]) for c in COSTS)))
        errors = (_error(grown[c] / grown["served"]) for c in COSTS)
        growths.append((name, len(grown), *errors))
    head = ("selection", "points, deployments", *COSTS)
    title = "time per token, composed over served less one: median, |median|, |p90|"
    print_rows(console, Rows(head, cells), title)
    title = "growth of it from the smallest batch, likewise"
    print_rows(console, Rows(("selection", "points", *COSTS), growths), title)


def _growth(rows: pd.DataFrame) -> pd.DataFrame:
    """Times over those at batch 4 of the same deployment and output length."""
    by = ["deployment", "osl", "batch"]
    medians = rows.groupby(by)[["served", *COSTS]].median().reset_index("batch")
    batch = medians.pop("batch")
    first, later = medians[batch == BATCHES[0]], medians[batch > BATCHES[0]]
    return (later / first.reindex(later.index)).dropna()


def _error(ratio: pd.Series) -> str:
    error = ratio.to_numpy(float) - 1.0
    worst = np.percentile(np.abs(error), [50, 90])
    return f"{np.median(error):+.0%}, {worst[0]:.0%}, {worst[1]:.0%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
