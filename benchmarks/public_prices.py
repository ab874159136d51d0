"""How far public rows can be trusted: what the gates say of all, and served times.

`gates` judges every pair of one GPU without sharding. `served` composes plain decoding
where AIConfigurator's own sample of served times (InferenceX, `silicon_sample.csv` in
the same wheel) has it, and compares: time per output token, and its growth with batch.

    python -m benchmarks.public_prices gates --from aiconfigurator_core-0.12.0-*.whl
    python -m benchmarks.public_prices served --from aiconfigurator_core-0.12.0-*.whl

A served request decodes 1,024 tokens of input and on average half of its output; only
engines without data parallelism on up to 8 GPUs are taken, at 4 to 64 requests. Engine
versions differ from those of the rows.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
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
from evict_profile.report.tables import Rows, print_rows
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.composer import Composer
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates, slope_gate, slowdown_gate
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

console = Console()


@command
def main(arguments: Sequence[str]) -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("gates", "served"))
    parser.add_argument("--from", dest="source", type=Path, default=None)
    asked = parser.parse_args(arguments)
    source = open_source(asked.source)
    if asked.what == "gates":
        show_gates(judged(source))
    else:
        show_served(served(source))


def judged(source: Source) -> pd.DataFrame:
    """One row a pair without sharding: what it is, and the first gate that it fails."""
    rows = []
    whole = [pair for pair in pairs(source) if pair.tp == pair.ep == 1]
    for pair in track(whole, "judging", console=console):
        gates = expert_gates(ExpertRows.of(source, pair))
        failed = [gate.name for gate in gates if not gate.passed]
        label = {"bytes of the label"} & set(failed)
        first = next(iter([*label, *failed]), "passed")
        rows.append({**pair._asdict(), "verdict": first})
    return pd.DataFrame(rows)


def show_gates(rows: pd.DataFrame) -> None:
    """Counts by GPU and engine, and kernels that are refused as a whole."""
    counts = pd.crosstab([rows["gpu"], rows["engine"]], rows["verdict"], margins=True)
    cells = [
        (*index, *own)
        for index, own in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    print_rows(console, Rows(("GPU", "engine", *counts.columns), cells))
    by = ["engine", "version", "kernel", "dtype"]
    whole = rows.groupby(by)["verdict"].agg(Counter)
    refused = [
        (*index, ", ".join(f"{n} {why}" for why, n in found.most_common()))
        for index, found in whole.items()
        if not found["passed"]
    ]
    print_rows(console, Rows((*by, "refused"), refused), "kernels of which none passed")


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
    model = load_model(MODELS[path])
    dtype = DTYPES.get(str(quantised), str(quantised))
    dtype = MXFP4 if "gpt-oss" in path else dtype
    groups = max(1, int(ep))
    found = [
        pair
        for pair in pairs(source, gpu, engine, model)
        if (pair.dtype, pair.tp, pair.ep) == (dtype, int(tp) // groups, groups)
    ]
    if not found:
        raise ConfigError(f"no rows of {dtype}, {shape_of(model)}, tp {tp}, ep {ep}")
    order = [version for _, version in source.engines(gpu, "moe")]
    newest = max(found, key=lambda pair: order.index(pair.version))
    return Composer.of(source, newest, model)


def _compared(
    composer: Composer, served: pd.DataFrame, deployment: str
) -> list[dict[str, Any]]:
    gates = [
        slope_gate(composer.experts),
        slowdown_gate(composer.parts, composer.parts.mlp_dtype),
    ]
    rows = []
    for row in served.itertuples():
        batch, context = int(row.batch_size), INPUT + int(row.osl) // 2
        prices = {
            name: composer.step(batch, union, context, batch).us / 1e3
            for name, union in _unions(composer, batch).items()
        }
        rows.append(
            {
                "deployment": deployment,
                "batch": batch,
                "osl": row.osl,
                "served": row.silicon_tpot_ms,
                **prices,
                **{gate.name: gate.passed for gate in gates},
            }
        )
    return rows


def _unions(composer: Composer, batch: int) -> dict[str, float]:
    uniform, top_k = composer.model.uniform_union(batch), composer.model.moe.top_k
    return {
        "uniform": uniform,
        "real text": top_k + ACTIVATED * (uniform - top_k),
        "no experts": 0.0,
    }


def show_served(rows: pd.DataFrame) -> None:
    """Errors of steps and of their growth, under each selection of rows."""
    slope, products = rows["slope"], rows["quantised products"]
    selections = {
        "all": slope | True,
        "slope gate": slope,
        "product gate": products,
        "both gates": slope & products,
    }
    prices = ("uniform", "real text", "no experts")
    cells, growths = [], []
    for name, mask in selections.items():
        own = rows[mask]
        count = f"{len(own)}, {own['deployment'].nunique()}"
        cells.append((name, count, *(_error(own[p] / own["served"]) for p in prices)))
        grown = _growth(own)
        ratios = (grown[p] / grown["served"] for p in prices)
        growths.append((name, len(grown), *map(_error, ratios)))
    head = ("points, deployments", *prices)
    title = "time per token, composed over served less one: median, |median|, |p90|"
    print_rows(console, Rows(("selection", *head), cells), title)
    title = "growth of it from the smallest batch, likewise"
    print_rows(console, Rows(("selection", "points", *prices), growths), title)


def _growth(rows: pd.DataFrame) -> pd.DataFrame:
    """Times over those at batch 4 of the same deployment and output length."""
    columns = ["served", "uniform", "real text", "no experts"]
    by = ["deployment", "osl"]
    medians = rows.groupby([*by, "batch"])[columns].median().reset_index("batch")
    first = medians[medians["batch"] == BATCHES[0]][columns]
    later = medians[medians["batch"] > BATCHES[0]]
    return (later[columns] / first.reindex(later.index)).dropna()


def _error(ratio: pd.Series) -> str:
    error = ratio.to_numpy(float) - 1.0
    worst = np.percentile(np.abs(error), [50, 90])
    return f"{np.median(error):+.0%}, {worst[0]:.0%}, {worst[1]:.0%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
