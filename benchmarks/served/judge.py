"""Predictions of served runs, each from overheads that its deployment did not teach."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from msgspec.structs import replace

from benchmarks.served.fit import Deployment, fit_overheads
from benchmarks.served.record import (
    CONTEXT,
    DENSE,
    NEW_2026,
    DenseControl,
    by_batch,
    deployments,
    new_2026,
    runs_of,
    specbundle,
    table_of,
)
from benchmarks.served.rivals import one_parameter, step_ratios
from evict_profile.calibrate.served import ServedRun
from evict_profile.stats import Floats, student
from evict_profile.table import ServedStep
from evict_profile.table.overheads import RECORD, TWO_SIDED, Amounts, Overheads

GROUP = ["deployment", "model", "dataset", "draft"]
ENGINE_DEFAULT = 3
"""Drafts that SGLang takes for most MoE models by default."""

START = Overheads(
    source="unions measured elsewhere and dense controls",
    runs=0,
    amounts=Amounts(0.78, 22.0, 30.0, 700.0, 300.0, 100.0),
    spread=RECORD.spread,
    growth=RECORD.growth,
    batches=RECORD.batches,
)
"""Where a fit begins: the share of uniform unions is that of `data/unions.csv`,
drafting that of an 8-billion dense model, the time a layer that of the record's plain
runs, which hardly matters: 0 to 80 us give median errors of 4.0 to 4.2 %."""


def held_out() -> dict[str, Overheads]:
    """Overheads and their error for each deployment of experts, from all others."""
    known, found = deployments(), {}
    for name in sorted(known.keys() - DENSE.values()):
        others = [each for other, each in known.items() if other != name]
        fitted = fit_overheads(others, START, "others")
        found[name] = replace(fitted, growth=growth_error(others, fitted.amounts))
    return found


def growth_error(known: Iterable[Deployment], amounts: Amounts) -> float:
    """Root mean square log of predicted over served time beyond plain decoding.

    Times Student's t of so many deployments over the normal law's, since runs of one
    deployment share their error.
    """
    off, judged = list[float](), 0
    for each in known:
        if not isinstance(each, DenseControl):
            predicted, served = (
                us[1:] / us[0] - 1.0 for us in (each.step_us(amounts), each.served_us)
            )
            off.extend(np.log(predicted / served).tolist())
            judged += 1
    return float(np.sqrt(np.square(off).mean())) * student(judged) / TWO_SIDED


def of_all() -> Overheads:
    """Overheads of the whole record: what `table.overheads.RECORD` should be."""
    return fit_overheads(list(deployments().values()), START, "the record")


def speedups(overheads: Mapping[str, Overheads]) -> pd.DataFrame:
    """SpecBundle's rows with experts, their predicted speed-ups and intervals.

    `predicted` holds prefill as served; `advised` is what `advise` answers, which does
    not know it. Then a column a rival.
    """
    rows = specbundle()
    rows = rows[~rows["deployment"].isin(DENSE.values())]
    parts = []
    for name, own in rows.groupby("deployment"):
        used, runs = overheads[str(name)], tuple(runs_of(own))
        found = _predicted(own, Deployment(table_of(str(name)), runs), used)
        accepted, outside = (
            own[column].to_numpy() for column in ("accept_length", "outside")
        )
        for rival, ratio in step_ratios(str(name), runs, used).items():
            found[rival] = wall(accepted / ratio, outside)
        parts.append(found)
    return pd.concat(parts)


def _predicted(
    rows: pd.DataFrame, deployment: Deployment, overheads: Overheads
) -> pd.DataFrame:
    plain_us, *step_us = deployment.step_us(overheads.amounts)
    ratio = np.array(step_us) / plain_us
    drafts = [run for run in deployment.runs if run.width > 1]
    ends = [
        overheads.ratio_interval(times, run.batch, run.width, run.levels, plain_us)
        for times, run in zip(ratio, drafts, strict=True)
    ]
    return of_ratios(rows, ratio, *np.array(ends).T)


def of_ratios(
    rows: pd.DataFrame, ratio: Floats, low: Floats, high: Floats
) -> pd.DataFrame:
    accepted = rows["accept_length"].to_numpy()
    outside = rows["outside"].to_numpy()
    return rows.assign(
        ratio=ratio,
        predicted=wall(accepted / ratio, outside),
        low=wall(accepted / high, outside),
        high=wall(accepted / low, outside),
        advised=accepted / ratio,
        advised_low=accepted / high,
        advised_high=accepted / low,
    )


def wall(speedup: Floats, outside: Floats) -> Floats:
    """Speed-up of the wall time, where this share of plain time is no decoding."""
    return 1.0 / (outside + (1.0 - outside) / speedup)


def regret(rows: pd.DataFrame, choice: Callable[[pd.DataFrame], int]) -> Floats:
    """Speed lost against the best setting of each group, float64 [groups]."""
    lost = [
        1.0 - group.loc[choice(group), "speedup"] / group["speedup"].max()
        for _, group in rows.groupby(GROUP)
    ]
    return np.array(lost)


CHOICES: dict[str, Callable[[pd.DataFrame], int]] = {
    "predicted best": lambda group: group["predicted"].idxmax(),
    "engine's default, 3 drafts": lambda group: group.index[
        group["steps"] == ENGINE_DEFAULT
    ][0],
    "longest accepted length": lambda group: group["accept_length"].idxmax(),
    "best by identical tokens": lambda group: group["identical tokens"].idxmax(),
    "best by one parameter": lambda group: group["one parameter"].idxmax(),
    "best by weight bytes": lambda group: group["weight bytes"].idxmax(),
}


def growth(overheads: Overheads, drafts: int = 4) -> pd.DataFrame:
    """Qwen3-235B's step with so many drafts over one draft, relative to batch 1.

    The accepted length of a setting cancels, and so does the level.
    """
    served = by_batch()
    table = table_of("qwen3-235b-a22b")

    def step_us(batch: int, k: int) -> float:
        run = ServedRun(batch, k + 1, k, 1, 1.0, 1.0, CONTEXT)
        plain = ServedRun(batch, 1, 0, 1, 1.0, 1.0, CONTEXT)
        return float(Deployment(table, (run, plain)).step_us(overheads.amounts)[0])

    batches = list(served.columns)
    predicted = np.array([step_us(b, drafts) / step_us(b, 1) for b in batches])
    measured = (served.loc[1] / served.loc[drafts]).to_numpy()
    found = {"predicted": predicted / predicted[0], "served": measured / measured[0]}
    return pd.DataFrame(found, index=batches)


def elsewhere() -> pd.DataFrame:
    """Served pairs that no amount was fitted to, as `advise` answers for them.

    Rivals are the record's one parameter, a speed-up of 1, and the median step ratio of
    the server's other runs of as many drafts, which alone knows the server.
    """
    rows, parts = new_2026(), []
    for server, own in rows.groupby("server"):
        table = table_of(NEW_2026[str(server)])
        known = ServedStep.of(table).overheads
        assert known, "the table is composed"
        for row in own.itertuples():
            batch, drafts = int(row.concurrency), int(row.draft_tokens_K)
            plain = ServedRun(batch, 1, 0, 1, 1.0, 1.0, CONTEXT)
            run = ServedRun(batch, drafts + 1, drafts, 1, 1.0, 1.0, CONTEXT)
            one = pd.DataFrame([row._asdict() | {"outside": 0.0}])
            parts.append(_predicted(one, Deployment(table, (plain, run)), known))
    found = pd.concat(parts, ignore_index=True)
    grown = 1.0 + one_parameter(deployments()) * found["draft_tokens_K"]
    accepted = found["accept_length"]
    return found.assign(
        **{"one parameter": accepted / grown, "no gain": 1.0},
        **{"its other runs": accepted / _of_other_runs(found)},
    )


def _of_other_runs(rows: pd.DataFrame) -> Floats:
    """Of runs of the same drafts, or of all where there is none: float64 [rows]."""
    ratio, found = rows["accept_length"] / rows["speedup"], list[float]()
    for at, row in rows.iterrows():
        others = (rows["server"] == row["server"]) & (rows.index != at)
        same = others & (rows["draft_tokens_K"] == row["draft_tokens_K"])
        found.append(float(ratio[same if same.any() else others].median()))
    return np.array(found)
