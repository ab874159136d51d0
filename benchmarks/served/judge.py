"""Predictions of served runs, each from overheads that its deployment did not teach."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from msgspec.structs import replace

from benchmarks.served.record import (
    CONTEXT,
    DENSE,
    DenseControl,
    angelslim,
    by_batch,
    deployments,
    runs_of,
    specbundle,
    table_of,
)
from evict_profile.calibrate.served import (
    Deployment,
    ServedRun,
    fit_overheads,
)
from evict_profile.stats import Floats
from evict_profile.table.overheads import RECORD, Amounts, Overheads

TWO_SIDED = 1.96
GROUP = ["deployment", "model", "dataset", "draft"]
ENGINE_DEFAULT = 3
"""Drafts that SGLang takes for most MoE models by default."""

START = Overheads(
    source="unions measured elsewhere and dense controls",
    runs=0,
    amounts=Amounts(0.78, 22.0, 30.0, 700.0, 300.0, 100.0),
    spread=RECORD.spread,
    growth=0.16,
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
    """Root mean square log of predicted over served time beyond plain decoding."""
    off = list[float]()
    for each in known:
        if not isinstance(each, DenseControl):
            predicted, served = (
                us[1:] / us[0] - 1.0 for us in (each.step_us(amounts), each.served_us)
            )
            off.extend(np.log(predicted / served).tolist())
    return float(np.sqrt(np.square(off).mean()))


def of_all() -> Overheads:
    """Overheads of the whole record: what `table.overheads.RECORD` should be."""
    return fit_overheads(list(deployments().values()), START, "the record")


def speedups(overheads: Mapping[str, Overheads]) -> pd.DataFrame:
    """SpecBundle's rows with experts, their predicted speed-ups and intervals."""
    rows = specbundle()
    rows = rows[~rows["deployment"].isin(DENSE.values())]
    parts = []
    for name, own in rows.groupby("deployment"):
        used = overheads[str(name)]
        deployment = Deployment(table_of(str(name)), tuple(runs_of(own)))
        parts.append(_predicted(own, deployment, used))
    return pd.concat(parts)


def _predicted(
    rows: pd.DataFrame, deployment: Deployment, overheads: Overheads
) -> pd.DataFrame:
    plain_us, *step_us = deployment.step_us(overheads.amounts)
    ratio = np.array(step_us) / plain_us
    drafting_us = np.array(step_us) - [
        _verify_us(deployment, run, overheads.amounts) for run in deployment.runs[1:]
    ]
    half = np.exp(TWO_SIDED * overheads.ratio_sd(ratio))
    accepted = rows["accept_length"].to_numpy()
    outside = rows["outside"].to_numpy()
    return rows.assign(
        ratio=ratio,
        predicted=wall(accepted / ratio, outside),
        low=wall(accepted / ratio / half, outside),
        high=wall(accepted / ratio * half, outside),
        dummy=wall(accepted / (1.0 + drafting_us / plain_us), outside),
    )


def _verify_us(deployment: Deployment, run: ServedRun, amounts: Amounts) -> float:
    forward = replace(amounts, round_us=0.0, level_us=0.0, branch_us=0.0)
    return float(Deployment.step_us(_only(deployment, run), forward)[0])


def _only(deployment: Deployment, run: ServedRun) -> Deployment:
    return Deployment(deployment.table, (run, deployment.plain[0]))


def wall(speedup: Floats, outside: Floats) -> Floats:
    """Speed-up of the wall time, where this share of plain time is no decoding."""
    return 1.0 / (outside + (1.0 - outside) / speedup)


def from_one_run(overheads: Mapping[str, Overheads]) -> pd.DataFrame:
    """Each group's other settings, once its plain run and three drafts are known."""
    rows = specbundle()
    rows = rows[~rows["deployment"].isin(DENSE.values())]
    parts = []
    for (name, *_), own in rows.groupby(GROUP):
        taught = own[own["steps"] == ENGINE_DEFAULT]
        prior = overheads[str(name)]
        table = table_of(str(name))
        one = fit_overheads([Deployment(table, tuple(runs_of(taught)))], prior, "own")
        rest = own[own["steps"] != ENGINE_DEFAULT]
        parts.append(_predicted(rest, Deployment(table, tuple(runs_of(rest))), one))
    return pd.concat(parts)


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
    "best by dummy tokens": lambda group: group["dummy"].idxmax(),
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


def elsewhere(overheads: Overheads) -> pd.DataFrame:
    """Served pairs of other engines whose model composes: vLLM at batch 1."""
    rows = angelslim()
    run = ServedRun(1, 3, 2, 1, 1.0, 1.0, CONTEXT)
    plain = ServedRun(1, 1, 0, 1, 1.0, 1.0, CONTEXT)
    deployment = Deployment(table_of("angelslim"), (plain, run))
    plain_us, step_us = deployment.step_us(overheads.amounts)
    ratio = step_us / plain_us
    half = np.exp(TWO_SIDED * overheads.ratio_sd(ratio))
    speed = rows["accept_length"] / ratio
    return rows.assign(predicted=speed, low=speed / half, high=speed * half)
