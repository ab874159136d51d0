"""One run of a server's own, against the rival that its measured step ratio stays.

Both know a drafting run and the plain step of its batch, and predict another run of the
same server. The amounts are those of other deployments.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from benchmarks.served.judge import ENGINE_DEFAULT, GROUP, of_ratios, wall
from benchmarks.served.record import (
    CONTEXT,
    DENSE,
    NEW_2026,
    new_2026,
    runs_of,
    specbundle,
    table_of,
)
from evict_profile.calibrate.served import SCALES, ServedRun, own_overheads
from evict_profile.stats import Bootstrap, Estimate
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import NEAR, Overheads, OwnStep

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Among which the other deployments choose in place of `SCALES`."""


def of_specbundle(
    overheads: Mapping[str, Overheads], share: float = SCALES
) -> pd.DataFrame:
    """Each group's other settings, once its plain run and three drafts are known.

    `stays` is the speed-up if a step keeps the ratio of that run.
    """
    rows = specbundle()
    rows = rows[~rows["deployment"].isin(DENSE.values())]
    parts = []
    for (name, *_), own in rows.groupby(GROUP):
        taught = own[own["steps"] == ENGINE_DEFAULT]
        rest = own[own["steps"] != ENGINE_DEFAULT]
        table = replace(table_of(str(name)), overheads=overheads[str(name)])
        runs = [*runs_of(taught)], [*runs_of(rest)][1:]
        parts.append(_from_own(rest, table, *runs, share))
    return pd.concat(parts)


def elsewhere(near: bool = False) -> pd.DataFrame:
    """Runs of `new-2026.csv`, each from each other of its server.

    Args:
        near: from runs at other batches, up to `NEAR` apart; else at the same batch.
    """
    parts = []
    for server, own in new_2026().groupby("server"):
        table = table_of(NEW_2026[str(server)])
        known = replace(table, overheads=ServedStep.of(table).overheads)
        for at in own.index:
            apart = own["concurrency"] / own.loc[at, "concurrency"]
            asked = apart.between(1.0 / NEAR, NEAR) & ((apart != 1.0) == near)
            rest = own[asked & (own.index != at)]
            rest = rest.assign(outside=0.0, deployment=server)
            runs = [run for _, run in _pairs(rest)]
            [taught] = _pairs(own.loc[[at]])
            parts.append(_from_own(rest, known, taught, runs))
    return pd.concat(parts)


def _pairs(rows: pd.DataFrame) -> Iterator[tuple[ServedRun, ServedRun]]:
    """The plain and the drafting run of each row."""
    for row in rows.itertuples():
        batch, drafts, plain = row.concurrency, int(row.draft_tokens_K), row.plain_tok_s
        setting = (int(batch), drafts + 1, drafts, 1, row.accept_length)
        yield (
            ServedRun(int(batch), 1, 0, 1, 1.0, plain, CONTEXT),
            ServedRun(*setting, plain * row.speedup, CONTEXT),
        )


def _from_own(
    rows: pd.DataFrame,
    table: CostTable,
    taught: Sequence[ServedRun],
    asked: Sequence[ServedRun],
    share: float = SCALES,
) -> pd.DataFrame:
    own = own_overheads(table, taught, "own")
    own = replace(own, own=tuple(_with_share(step, share) for step in own.own))
    found = _asked(rows, replace(table, overheads=own), asked)
    stays = found["accept_length"] * taught[0].step_us / taught[1].step_us
    return found.assign(stays=wall(stays.to_numpy(), found["outside"].to_numpy()))


def _asked(
    rows: pd.DataFrame, table: CostTable, asked: Sequence[ServedRun]
) -> pd.DataFrame:
    ratios = [
        ServedStep.of(table, topk=run.topk).ratio(
            run.batch, run.width, run.levels, run.context
        )
        for run in asked
    ]
    ends = [[getattr(each, end) for each in ratios] for end in ("value", "low", "high")]
    return of_ratios(rows, *np.array(ends))


def plain_alone(overheads: Mapping[str, Overheads]) -> pd.DataFrame:
    """SpecBundle's settings and `new-2026.csv`'s, once their plain step is known.

    `server` is a deployment of SpecBundle, or of the other servers one.
    """
    rows = specbundle()
    parts = []
    for name, own in rows[~rows["deployment"].isin(DENSE.values())].groupby(GROUP[0]):
        table = replace(table_of(str(name)), overheads=overheads[str(name)])
        plain, *drafts = runs_of(own)
        parts.append(_from_plain(own.assign(server=name), table, plain, drafts))
    for server, own in new_2026().groupby("server"):
        table = table_of(NEW_2026[str(server)])
        known = replace(table, overheads=ServedStep.of(table).overheads)
        for at, (plain, run) in zip(own.index, _pairs(own), strict=True):
            row = own.loc[[at]].assign(outside=0.0)
            parts.append(_from_plain(row, known, plain, [run]))
    return pd.concat(parts)


def _from_plain(
    rows: pd.DataFrame, table: CostTable, plain: ServedRun, asked: Sequence[ServedRun]
) -> pd.DataFrame:
    own = own_overheads(table, [plain], "own")
    found = _asked(rows, replace(table, overheads=own), asked)
    return found.assign(plain=own.own[0].plain)


def _with_share(step: OwnStep, share: float) -> OwnStep:
    """The step if so much of the growth scaled; one that the host bounds stays."""
    if step.floor_us:
        return step
    return replace(
        step,
        share=step.share * share / SCALES,
        fixed_us=step.fixed_us * (1.0 - share) / (1.0 - SCALES),
    )


def shares_chosen(overheads: Mapping[str, Overheads]) -> dict[str, float]:
    """The share with the least mean error on the other deployments, for each."""
    off = pd.DataFrame(
        {share: _off(of_specbundle(overheads, share)) for share in SHARES}
    )
    return {
        str(name): float(off.drop(str(name)).mean().idxmin())
        for name in off.index.unique()
    }


def has_draft_model(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows["server"].str.endswith("draft model")


def by_plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors of `plain_alone` by server, and the rule that the others choose.

    Others are all servers, or those whose drafter is the record's kind.
    """
    off = 100.0 * np.abs(np.log(rows["advised"] / rows["speedup"]))
    found = off.groupby(rows["server"]).agg(["size", "median", "max"]).round(1)
    levels = rules_chosen(rows[~has_draft_model(rows)])
    return found.assign(all=rules_chosen(rows), levels=levels)


def rules_chosen(rows: pd.DataFrame) -> "pd.Series[Any]":
    """Of `plain_alone`, by what power of a plain step its growth is divided.

    One power of a step slower than predicted and one of a faster step, for each server
    those with the least mean error on the others. 1 and 0 are `OwnStep.of_plain`.
    """
    slower, faster = rows["plain"].clip(lower=1.0), rows["plain"].clip(upper=1.0)
    known, off = (rows["ratio"] - 1.0) * slower, {}
    for powers in product(SHARES, SHARES):
        grown = 1.0 + known / slower ** powers[0] / faster ** powers[1]
        speed = wall((rows["accept_length"] / grown).to_numpy(), rows["outside"])
        size = np.abs(np.log(speed / rows["speedup"]))
        off[powers] = size.groupby(rows["server"]).mean()
    errors = pd.DataFrame(off)
    chosen = {name: errors.drop(name).mean().idxmin() for name in errors.index}
    return pd.Series(chosen)


def _off(rows: pd.DataFrame, how: str = "predicted") -> "pd.Series[float]":
    """Size of log errors, by deployment."""
    off = np.abs(np.log(rows[how] / rows["speedup"]))
    return off.set_axis(rows["deployment"])


def difference(rows: pd.DataFrame) -> Estimate:
    """Mean size of errors less that of the rival, each deployment counted once.

    The 95 % interval is of deployments, and unbounded for fewer than five.
    """
    off = (_off(rows) - _off(rows, "stays")).groupby(level=0).mean().to_numpy(float)
    bootstrap = Bootstrap(len(off))
    return bootstrap.estimate(bootstrap.sums(off[:, None])[0] / len(off))


def against(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors of each deployment and of all, beside the rival's, in per cent."""
    lines = {}
    for name, own in {**dict(iter(rows.groupby("deployment"))), "all": rows}.items():
        size, rival = 100.0 * _off(own), 100.0 * _off(own, "stays")
        lines[name] = {
            "pairs": len(own),
            "median": size.median(),
            "p90": size.quantile(0.9),
            "stays, median": rival.median(),
            "stays, p90": rival.quantile(0.9),
            "difference": 100.0 * difference(own).value,
        }
    return pd.DataFrame(lines).T.round(1)
