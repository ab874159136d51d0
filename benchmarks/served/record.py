"""The record: public served steps over plain ones, and the rows that are left out.

Each file in `data/` names its sources. A server is a model, a drafter, a GPU and an
engine. A group is one server at one batch and text, so that its rows differ in the
draft alone.

SpecBundle's throughput is of wall time, prefill and the last requests of a run with it.
A text whose plain throughput is below that of the model's fastest text spends the
difference outside full decoding; `WALL` of that is time that drafting does not shorten.
The ratios here are without it. Other sources do not tell the share, and theirs are as
published.
"""

from functools import cache
from pathlib import Path

import pandas as pd

from evict_profile.stats import Floats
from evict_profile.table import CostTable

DATA = Path(__file__).parent / "data"
TABLES = Path(__file__).parents[2] / "cost_tables" / "composed"
WALL = 0.62
CONTEXT = 1024.0
"""Tokens in a cache half-way through a reply; no source says."""

H200 = "nvidia-h200/{}/1.0.0.json"
QWEN_30B = H200.format("qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1")
B200_30B = "nvidia-b200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json"
H100_OSS = "nvidia-h100-80gb-hbm3/gpt-oss-120b/vllm-0.24.0-w4a16-mxfp4-tp1-ep1/{}"
QWEN_235B = H200.format("qwen3-235b-a22b/sglang-0.5.14-bfloat16-tp8-ep1")
COVERED = {
    "Qwen3-30B-A3B": B200_30B,
    "Qwen3-30B-A3B-Instruct-2507": QWEN_30B,
    "Qwen3-Coder-30B-A3B-Instruct": QWEN_30B,
    "Qwen3-235B-A22B-Instruct-2507": QWEN_235B,
    "Kimi-K2-Instruct": H200.format("kimi-k2/sglang-0.5.14-fp8-block-tp8-ep1"),
    "gpt-oss-120b": H100_OSS.format("1.0.0.json"),
}
"""Shipped tables by served model; `data/composed-growth.csv` has three more. TP of
SpecBundle is that of the commands on the drafters' cards (4, 4, 8) and all GPUs of a
node for Kimi-K2. The first stands in: its rows ran vLLM with TP 4, on GB200 by the name
of the cluster."""

SIMULATED = {QWEN_30B: "Qwen/Qwen3-30B-A3B", QWEN_235B: "Qwen/Qwen3-235B-A22B"}
"""Models of AISimulate's rows, at the TP, GPU and engine of a table."""


@cache
def record() -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows, and how many others are left out, by the reason.

    Columns: `server`, `group`, `model`, `text`, `batch`, `width`, `topk`, `accepted`,
    and `ratio` (step over plain step).
    """
    rows = pd.concat([_specbundle(), _pairs("served-pairs"), _pairs("new-2026")])
    dense, untold = rows["model"].str.contains("dense|Llama-3"), rows["ratio"].isna()
    scout = rows["model"].str.startswith("Llama-4-Scout")
    untold |= ~(rows["width"] > 1.0)
    beyond = rows["ratio"] > rows["width"]
    is_left = {
        "dense: a step without experts": dense,
        "Llama-4-Scout: 4 tokens take less time than one in five of seven texts": scout,
        "not stated: accepted length or verified tokens": untold & ~dense,
        "above n: more than n plain steps, which experts cannot cause": beyond,
    }
    kept = rows[~pd.DataFrame(is_left).any(axis=1)].reset_index(drop=True)
    kept["group"] = kept[["server", "batch", "text"]].astype(str).agg("/".join, axis=1)
    kept = kept.astype(dict.fromkeys(["batch", "width", "topk"], int))
    return kept, {why: int(each.sum()) for why, each in is_left.items()}


def _specbundle() -> pd.DataFrame:
    """SGLang on H200 at 8 requests, with prefill taken out of ratio and plain step."""
    rows = pd.read_csv(DATA / "specbundle.csv", comment="#")
    fastest = rows.groupby("model")["plain_tok_s"].transform("max")
    outside = WALL * (1.0 - rows["plain_tok_s"] / fastest)
    ratio = rows["accept_length"] * (1.0 / rows["speedup"] - outside) / (1.0 - outside)
    return pd.DataFrame(
        {
            "server": rows["model"] + " + " + rows["draft"],
            "model": rows["model"],
            "text": rows["dataset"],
            "batch": rows["batch_size"],
            "width": rows["num_draft_tokens"],
            "topk": rows["topk"],
            "accepted": rows["accept_length"],
            "ratio": ratio,
        }
    )


def _pairs(name: str) -> pd.DataFrame:
    """Runs that others published with their plain run."""
    rows = pd.read_csv(DATA / f"{name}.csv", comment="#")
    place = ["target", "method", "gpu", "engine"]
    return pd.DataFrame(
        {
            "server": rows[place].fillna("").astype(str).agg(" ".join, axis=1),
            "model": rows["target"],
            "text": rows["note"].fillna("").str.split(";").str[0],
            "batch": rows["concurrency"],
            "width": pd.to_numeric(rows["verified_n"], errors="coerce"),
            "topk": pd.to_numeric(rows["tree_topk"], errors="coerce").fillna(1.0),
            "accepted": rows["accept_length"],
            "ratio": rows["step_over_plain"],
        }
    )


def table_growth(rows: pd.DataFrame) -> "pd.Series[float]":
    """A forward over plain decoding's by a composed table; NaN where there is none."""
    kept = pd.read_csv(DATA / "composed-growth.csv", comment="#")
    found = rows.merge(kept, "left", ["model", "batch", "width"])["growth"]
    for at, row in rows[rows["model"].isin(COVERED)].iterrows():
        us = step_us(COVERED[row["model"]], row["batch"])
        found[at] = us[row["batch"] * row["width"]] / us[row["batch"]]
    return found


@cache
def step_us(path: str, batch: int) -> Floats:
    return CostTable.load(TABLES / path).costs(batch, CONTEXT).step_cost_us


def simulated(rows: pd.DataFrame) -> "pd.Series[float]":
    """AISimulate's verification over plain decoding; NaN where it was not asked."""
    kept = pd.read_csv(DATA / "aisimulate-verify-ratios.csv", comment="#")
    kept = kept[(kept["backend"] == "sglang") & (kept["tp"] > 1)]
    kept = kept.rename(columns={"model": "name", "verified_n": "width", "ratio": "by"})
    named = rows.assign(name=rows["model"].map(COVERED).map(SIMULATED))
    return named.merge(kept, "left", ["name", "batch", "width"])["by"]
