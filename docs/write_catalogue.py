"""Writes the rows of docs/decide/catalogue.md: K by model, GPU and requests at once.

python docs/write_catalogue.py         # shipped tables anew; other rows are kept
python docs/write_catalogue.py WHEEL   # also what AIConfigurator's rows give
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.config.load import known_models, load_model
from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.io import data_root, write_text
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.asked import deployment_of, deployments_of
from evict_profile.sources.compose import compose, composer_of
from evict_profile.sources.composer import sweep_of
from evict_profile.sources.pairs import kernels_of
from evict_profile.table import CostTable

DOCS = Path(__file__).parent
DATA, PAGE = DOCS / "research/data/catalogue.csv", DOCS / "decide/catalogue.md"
MARK = "<!-- docs/write_catalogue.py writes below -->\n"
GPUS, ENGINES = ("H200", "B200"), ("sglang", "vllm", "trtllm")
CONTEXT, BATCHES, RATES = 512, (1, 4, 16, 64), (0.75, 0.6)
SETTING = ["model", "GPU", "engine", "dtype", "tp"]
LENGTHS = {f"K={drafts}": drafts for drafts in range(1, 9)}


def shipped() -> Iterator[dict[str, Any]]:
    for path in sorted((data_root() / "cost_tables/composed").rglob("*.json")):
        yield from rows_of(CostTable.load(path), "shipped")


def estimated(source: Source, known: set[Any]) -> Iterator[dict[str, Any]]:
    """Of each model and GPU that is not known, if its public rows can be used."""
    for path, gpu in product(known_models(), GPUS):
        model = load_model(str(path))
        there = {(each.gpu, each.engine) for each in deployments_of(model.name)}
        usable = [each for each in ENGINES if (f"{gpu.lower()}_sxm", each) in there]
        toy = model.name.startswith("tiny")
        if toy or not usable or (model.name, gpu) in known:
            continue
        try:
            asked = deployment_of(model, gpu.lower(), usable[0], None, None)
            kernels = kernels_of(source, model, *asked[:4])
            table, _ = compose(composer_of(source, kernels, model), sweep_of())
            yield from rows_of(table, "estimated")
        except (ConfigError, MeasurementError) as error:
            print(f"{model.name} on {gpu}: {error}", flush=True)


def rows_of(table: CostTable, origin: str) -> Iterator[dict[str, Any]]:
    """By batch and acceptance; `lost` is the share K loses at the batch's longest."""
    key = table.key
    names = (key.model, key.gpu.removeprefix("NVIDIA "), key.engine, key.dtype, key.tp)
    for rate in RATES:
        here = Advisor.of(table, of_rate(rate), CONTEXT)
        for batch in sorted({*BATCHES} & {*here.batches}):
            longest = table.contexts(batch)[1]
            there = Advisor.of(table, of_rate(rate), longest)
            advice, later = here.at(batch), there.at(batch).speeds
            drafts, speed = advice.best.levels, advice.best.speed
            yield {
                **dict(zip(SETTING, names, strict=True)), "version": key.engine_version,
                "table": origin, "accept": rate, "batch": batch, "K": drafts,
                "speed": speed.value, "low": speed.low, "high": speed.high,
                "settled": advice.sure, "longest": longest,
                "lost": 1.0 - later[drafts] / max(later.values()),
                **{name: advice.speeds.get(k) for name, k in LENGTHS.items()},
            }  # fmt: skip


def lines(rows: pd.DataFrame) -> Iterator[str]:
    """What the page says of the rows, and its table."""
    loses = {rate: losses(own) for rate, own in rows.groupby("accept", sort=False)}
    lengths = {"K=3", *(each["mean"].idxmin() for each in loses.values())}
    for rate, found in loses.items():
        ranked = found[found.index.isin(lengths)].sort_values("mean").itertuples()
        one = (f"{k} loses {m:.1f} %, at most {top:.0f} %" for k, m, top in ranked)
        yield f"- One K for all, at acceptance {rate}: {'; '.join(one)}."
    for longest, own in rows.groupby("longest"):
        worst = f"at most {100.0 * own['lost'].max():.1f} %"
        yield f"- K of context {CONTEXT} loses {worst} at context {longest:,}."
    first = rows[rows["accept"] == RATES[0]]
    yield f"- {(~first['settled']).sum()} of the {len(first)} cells are not settled.\n"
    heads = ("model", "GPU", "engine, experts, TP", *BATCHES, f"at {RATES[1]}")
    yield f"| {' | '.join(map(str, heads))} |\n{'|---' * len(heads)}|"
    shown = rows[(rows["table"] == "shipped") | (rows["GPU"] == GPUS[0])]
    for (model, gpu, *rest), own in shown.groupby(SETTING):
        at, low = (own[own["accept"] == rate].set_index("batch") for rate in RATES)
        cells = at.apply(cell, axis=1).reindex(BATCHES, fill_value="-")
        about = (model, gpu, ", ".join(map(str, rest)), *cells)
        yield f"| {' | '.join(about)} | {', '.join(map(str, low['K']))} |"


def losses(own: pd.DataFrame) -> pd.DataFrame:
    """Per cent that a single K loses against the K of each row; mean and worst."""
    speeds = own[[*LENGTHS]].dropna(axis=1).assign(**{"K=0": 1.0})
    lost = 100.0 * (1.0 - speeds.div(own["speed"], axis=0))
    return pd.DataFrame({"mean": lost.mean(), "worst": lost.max()})


def cell(row: pd.Series) -> str:
    text = f"K={row['K']} {row['speed']:.2f} ({row['low']:.2f}..{row['high']:.2f})"
    return text + "<br>not settled" * (not row["settled"])


if __name__ == "__main__":
    rows = pd.DataFrame(shipped())
    other = pd.read_csv(DATA).query("table != 'shipped'")
    for wheel in sys.argv[1:]:
        known = {*zip(rows["model"], rows["GPU"], strict=True)}
        other = pd.DataFrame(estimated(open_source(Path(wheel)), known))
    pd.concat([rows, other]).round(3).to_csv(DATA, index=False)
    head, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    write_text("\n".join([head + mark, *lines(pd.read_csv(DATA))]), PAGE)
