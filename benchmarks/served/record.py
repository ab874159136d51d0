"""The record: served runs with their accepted lengths, and the tables that cover them.

Each file in `data/` names its sources. A row is judged where a table of its model, GPU
and engine composes; the reports say for how many none does.

SpecBundle's throughput is of wall time, prefill and the last requests of a run with it.
A text whose plain throughput is below that of the model's fastest text spends the
difference outside full decoding; `WALL` of that is time that drafting does not shorten.
The share is fitted to the runs that are judged (without each model in turn 0.59 to
0.66), and their own plain throughput is read: `advise` has neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.served.fit import Deployment
from evict_profile.calibrate.served import ServedRun
from evict_profile.stats import Floats
from evict_profile.table import CostTable
from evict_profile.table.overheads import Amounts

DATA = Path(__file__).parent / "data"
TABLES = Path(__file__).parents[2] / "cost_tables" / "composed"
WALL = 0.62
CONTEXT = 1024.0
"""Tokens in a cache half-way through a reply; no source says."""

H200 = "nvidia-h200/{}/1.0.0.json"
QWEN_30B = H200.format("qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1")
QWEN_235B = H200.format("qwen3-235b-a22b/sglang-0.5.14-bfloat16-tp8-ep1")
KIMI = H200.format("kimi-k2/sglang-0.5.14-fp8-block-tp8-ep1")
B200_30B = "nvidia-b200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json"
GPT_OSS = (
    "nvidia-h100-80gb-hbm3/gpt-oss-120b/vllm-0.24.0-w4a16-mxfp4-tp1-ep1/1.0.0.json"
)

COMPOSED = {
    "Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", QWEN_30B),
    "Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b", QWEN_30B),
    "Qwen3-235B-A22B-Instruct-2507": ("qwen3-235b-a22b", QWEN_235B),
    "Kimi-K2-Instruct": ("kimi-k2", KIMI),
}
"""SpecBundle's models that compose, with the deployment that they count as. TP is that
of the commands on the drafters' cards (4, 4, 8) and all GPUs of a node for Kimi-K2."""

NEW_2026 = {
    "gpt-oss-120b": GPT_OSS,
    "Qwen3-30B-A3B": B200_30B,
    "Qwen3-30B-A3B, draft model": B200_30B,
}
"""Tables that stand in for servers of `new-2026.csv`. The second ran vLLM with TP 4, on
GB200 by the name of its cluster; its GPU was not stated."""

DENSE = {"Llama-3.1-8B-Instruct": "llama-8b", "Llama-3.3-70B-Instruct": "llama-70b"}
"""Controls: no experts, so that a step beyond the plain one is what drafting adds."""

BROKEN = {
    "Llama-4-Scout-17B-16E-Instruct": "in five of seven texts verifying 4 tokens takes "
    "less time than one, so plain decoding ran in another way",
}


@dataclass(frozen=True)
class DenseControl(Deployment):
    """A model without experts: verification takes what plain decoding took."""

    def step_us(self, amounts: Amounts) -> Floats:
        """See `Deployment.step_us`."""
        plain_us = self.plain[0].step_us
        beyond = [self._beyond_us(run, amounts) for run in self.runs]
        return plain_us + np.array(beyond)

    def _beyond_us(self, run: ServedRun, amounts: Amounts) -> float:
        level_us = amounts.level_us + (run.topk > 1) * amounts.branch_us
        drafted_us = (run.width > 1) * amounts.round_us + run.levels * level_us
        return drafted_us + run.batch * (run.width - 1) * amounts.token_us


def specbundle() -> pd.DataFrame:
    """Rows that are judged or are controls, with their deployment and decoding time.

    `outside` is the share of plain wall time that drafting does not shorten, and
    `decode_speedup` the served speed-up without it.
    """
    rows = pd.read_csv(DATA / "specbundle.csv", comment="#")
    names = {model: name for model, (name, _) in COMPOSED.items()} | DENSE
    rows = rows[rows["model"].isin(names)].reset_index(drop=True)
    rows["deployment"] = rows["model"].map(names)
    fastest = rows.groupby("deployment")["plain_tok_s"].transform("max")
    rows["fastest"] = fastest
    rows["outside"] = WALL * (1.0 - rows["plain_tok_s"] / fastest)
    left = 1.0 / rows["speedup"] - rows["outside"]
    rows["decode_speedup"] = (1.0 - rows["outside"]) / left
    return rows


def not_judged() -> dict[str, int]:
    """Runs of SpecBundle's models with experts that no table here covers, by model."""
    models = pd.read_csv(DATA / "specbundle.csv", comment="#")["model"]
    judged = models.isin([*COMPOSED, *DENSE])
    return {str(name): int(n) for name, n in models[~judged].value_counts().items()}


@cache
def table_of(deployment: str) -> CostTable:
    """The composed table of a deployment, or of a path below them."""
    return CostTable.load(TABLES / dict(COMPOSED.values()).get(deployment, deployment))


def runs_of(rows: pd.DataFrame) -> Iterator[ServedRun]:
    """One plain run at the fastest text, and each row's setting."""
    first = rows.iloc[0]
    batch = int(first["batch_size"])
    yield ServedRun(batch, 1, 0, 1, 1.0, float(first["fastest"]), CONTEXT)
    for row in rows.itertuples():
        rate = row.fastest * row.decode_speedup
        yield ServedRun(
            batch,
            int(row.num_draft_tokens),
            int(row.steps),
            int(row.topk),
            float(row.accept_length),
            float(rate),
            CONTEXT,
        )


def deployments() -> dict[str, Deployment]:
    """SpecBundle's, by name."""
    found: dict[str, Deployment] = {}
    for name, rows in specbundle().groupby("deployment"):
        runs = tuple(runs_of(rows))
        if name in DENSE.values():
            found[str(name)] = DenseControl(table_of("kimi-k2"), runs)
        else:
            found[str(name)] = Deployment(table_of(str(name)), runs)
    return found


def by_batch() -> pd.DataFrame:
    """Tokens a second of Qwen3-235B by draft length (rows) and batch (columns)."""
    rows = pd.read_csv(DATA / "sglang-autospec-22246.csv", skiprows=1)
    own = rows["target"].str.contains("235B") & (rows["steps"] != "AutoSpec")
    table = rows[own].set_index("steps").drop(columns="target").astype(float)
    table.index = table.index.astype(int)
    return table.rename(columns=lambda name: int(name[1:]))


def new_2026() -> pd.DataFrame:
    """Runs of this autumn whose model has a table of the engine or the GPU.

    `server` is the model and the drafter: a draft model is no level of EAGLE-3.
    """
    rows = pd.read_csv(DATA / "new-2026.csv", comment="#")
    eagle = rows["method"].str.startswith("EAGLE3")
    rows["server"] = np.where(eagle, rows["target"], rows["target"] + ", draft model")
    return rows[rows["server"].isin(NEW_2026)]
