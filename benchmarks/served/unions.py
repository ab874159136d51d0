"""Experts that the tokens of a verifying step activate, in published traces.

A token picks k of N experts. t independent tokens of evenly used experts activate
N (1 - (1 - k/N)^t) of them. Consecutive tokens of a text share experts, so that n count
as n^reuse tokens. A rejected draft is none of the text, and counts as one. Where some
experts are used more often than others, independent tokens share experts as well:

    t = (sum over requests of accepted^reuse + rejected)^evenness

Both exponents are a model's own. The estimates know neither: they take one share of the
growth of uniform unions (`table.overheads.Amounts`), and this is how wrong that is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.served.fit import Deployment
from benchmarks.served.record import CONTEXT, DATA, table_of
from evict_profile.calibrate.served import ServedRun
from evict_profile.records import replace
from evict_profile.stats import Floats
from evict_profile.table import ActivationCurve
from evict_profile.table.overheads import RECORD

ACCEPTED = (0.6, 0.8, 0.9, 1.0)
"""Chances of a draft; 1 is every token of the text."""


@dataclass(frozen=True)
class UnionGrowth:
    """How the union grows with a step's tokens; 1, 1 is uniform and independent."""

    reuse: float
    evenness: float

    def union(
        self, experts: int, top_k: int, tokens: int, accept: float, batch: int = 1
    ) -> float:
        """Mean over steps, whose first rejection comes at a geometric place."""
        kept = np.arange(1.0, tokens + 1.0)
        chance = accept ** (kept - 1.0) * np.where(kept < tokens, 1.0 - accept, 1.0)
        counted = float(chance @ (kept**self.reuse + tokens - kept))
        t = (batch * counted) ** self.evenness
        return float(experts * (1.0 - (1.0 - top_k / experts) ** t))


@dataclass(frozen=True)
class UnionShare:
    """One share of what uniform routing adds to one token's experts, as estimated."""

    share: float

    def union(
        self, experts: int, top_k: int, tokens: int, accept: float, batch: int = 1
    ) -> float:
        """See `UnionGrowth.union`; rejections change nothing."""
        uniform = UnionGrowth(1.0, 1.0).union(experts, top_k, tokens, accept, batch)
        return top_k + self.share * (uniform - top_k)


Unions = UnionGrowth | UnionShare


def traces() -> pd.DataFrame:
    return pd.read_csv(DATA / "union-traces.csv", comment="#")


def errors(rows: pd.DataFrame, known: Unions) -> Floats:
    """Log of predicted over traced unions, float64 [rows]."""
    columns = rows[["experts", "top_k", "tokens", "accept"]]
    found = [known.union(*row) for row in columns.itertuples(index=False)]
    return np.log(np.array(found) / rows["union"].to_numpy())


def growth_of(rows: pd.DataFrame) -> UnionGrowth:
    """The exponents of one model, by least squares of logs."""

    def off(exponents: Floats) -> Floats:
        return errors(rows, UnionGrowth(*exponents.tolist()))

    return UnionGrowth(*least_squares(off, (0.75, 0.95)).x.tolist())


def share_of(rows: pd.DataFrame) -> UnionShare:
    def off(share: Floats) -> Floats:
        return errors(rows, UnionShare(*share.tolist()))

    return UnionShare(*least_squares(off, (0.75,)).x.tolist())


def models() -> dict[str, pd.DataFrame]:
    return {str(name): rows for name, rows in traces().groupby("model", sort=False)}


@cache
def own() -> dict[str, UnionGrowth]:
    """Each traced model's exponents."""
    return {name: growth_of(rows) for name, rows in models().items()}


def judged() -> dict[str, dict[str, Floats]]:
    """Errors by what is known of a model, and by model."""
    every = models()
    growths, shares = own(), {name: share_of(rows) for name, rows in every.items()}
    short = {name: growth_of(rows[rows["tokens"] == 2]) for name, rows in every.items()}
    one = UnionShare(RECORD.amounts.union_share)
    ways: dict[str, Mapping[str, Unions]] = {
        "its trace": growths,
        "its trace at two tokens": short,
        "other models' traces": {name: _mean(growths, name) for name in every},
        "its trace, one share": shares,
        "the record's share": dict.fromkeys(every, one),
    }
    found = {
        way: {name: errors(every[name], each) for name, each in known.items()}
        for way, known in ways.items()
    }
    for name, rows in every.items():  # only what was not fitted
        longer = (rows["tokens"] > 2).to_numpy()
        kept = found["its trace at two tokens"]
        kept[name] = kept[name][longer]
    return found


def _mean(known: Mapping[str, UnionGrowth], without: str) -> UnionGrowth:
    others = [each for name, each in known.items() if name != without]
    reuse, evenness = (
        float(np.mean([getattr(each, field) for each in others]))
        for field in ("reuse", "evenness")
    )
    return UnionGrowth(reuse, evenness)


def growth_error(deployments: Iterable[str], batch: int) -> float:
    """Root mean square log of growth by the record's share over that by exponents.

    Growth is a step's time beyond plain decoding. Each deployment is asked with the
    exponents of each traced model, at 2, 4 and 8 tokens and each chance of a draft.
    """
    share, off = UnionShare(RECORD.amounts.union_share), list[Floats]()
    for name, accept in product(deployments, ACCEPTED):
        assumed = _growth(name, batch, share, accept)
        for each in own().values():
            off.append(np.log(assumed / _growth(name, batch, each, accept)))
    return float(np.sqrt(np.square(off).mean()))


def _growth(deployment: str, batch: int, known: Unions, accept: float) -> Floats:
    table = table_of(deployment)
    moe, tokens = table.model.moe, batch * np.arange(9)
    one = [known.union(moe.num_experts, moe.top_k, n, accept, batch) for n in range(9)]
    every = np.interp(np.arange(tokens[-1] + 1), tokens, [0.0, *one[1:]])
    curve = ActivationCurve("traced", False, tuple(every.tolist()))
    runs = [ServedRun(batch, n, n - 1, 1, 1.0, 1.0, CONTEXT) for n in (1, 2, 4, 8)]
    served = Deployment(replace(table, activation=curve), tuple(runs))
    plain_us, *step_us = served.step_us(RECORD.amounts)
    return np.array(step_us) / plain_us - 1.0
