"""Constants of `evict_profile.served.growth` from the record, each server left out.

A question is a row that is asked, and what is known of its server: nothing, or one
other K of its group. The answer is known * e^(p x), where x is the log of the asked
verified tokens over the known ones. p has the smallest sum of sizes of log errors. The
95 % interval is TWO_SIDED times the root mean square of these errors. A server weighs
at most `MOST` rows, because its rows share what moves them.
"""

from collections.abc import Callable, Hashable, Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.served.record import DATA, record, simulated, table_growth
from evict_profile.served.setting import TWO_SIDED
from evict_profile.stats import Floats

MOST = 10
Row = dict[Hashable, Any]
Rule = Callable[[pd.DataFrame], Floats]
"""What answers questions with ratios."""


def weights(rows: pd.DataFrame) -> Floats:
    """Of each row, so that a server's sum to at most `MOST`."""
    count = rows.groupby("server")["server"].transform("size").to_numpy(float)
    return np.minimum(count, MOST) / count


def exponent(rows: pd.DataFrame) -> float:
    """p of the smallest weighted sum of |y - p x|: a weighted median of slopes."""
    return _slope(rows, rows["x"], rows["y"])


def _slope(rows: pd.DataFrame, x: "pd.Series[float]", y: "pd.Series[float]") -> float:
    slopes = (y / x).sort_values()
    reached = (weights(rows) * np.abs(x))[slopes.index].cumsum()
    return float(slopes.iloc[reached.searchsorted(reached.iloc[-1] / 2.0)])


def error(rows: pd.DataFrame, off: Floats) -> float:
    """Half of a 95 % interval of log errors."""
    weight = weights(rows)
    return TWO_SIDED * float((weight @ np.square(off) / weight.sum()) ** 0.5)


def power(others: pd.DataFrame) -> Rule:
    """The known ratio times a power of the width."""
    p = exponent(others)
    return lambda rows: (rows["known"] * np.exp(p * rows["x"])).to_numpy()


def one_parameter(others: pd.DataFrame) -> Rule:
    """1 + c (n - 1), of rows over plain decoding."""
    c = _slope(others, others["width"] - 1.0, others["ratio"] - 1.0)
    return lambda rows: (1.0 + c * (rows["width"] - 1.0)).to_numpy()


def held_out(rows: pd.DataFrame, fit: Callable[[pd.DataFrame], Rule]) -> pd.DataFrame:
    """Ratios as other servers teach them: `value`, and the interval `low`, `high`."""
    parts = []
    for server, own in rows.groupby("server", sort=False):
        others = rows[rows["server"] != server]
        rule = fit(others)
        off = error(others, np.log(rule(others) / others["ratio"].to_numpy()))
        ends = {"value": 0.0, "low": -off, "high": off}
        found = {name: rule(own) * np.exp(end) for name, end in ends.items()}
        parts.append(pd.DataFrame(found, own.index))
    return pd.concat(parts).loc[rows.index]


def from_nothing() -> pd.DataFrame:
    """Every row over plain decoding, with composed tables' growth and AISimulate."""
    rows, _ = record()
    return rows.assign(
        known=1.0,
        x=np.log(rows["width"]),
        y=np.log(rows["ratio"]),
        table=table_growth(rows),
        simulated=simulated(rows),
    )


def from_one(rows: pd.DataFrame) -> pd.DataFrame:
    """Each chain of a group of `from_nothing` from each other one."""
    pairs = [(known, asked) for (known,), asked in known_and_asked(rows, 1)]
    known, found = (pd.DataFrame(each) for each in zip(*pairs, strict=True))
    shape = (found["table"] - 1.0) / (known["table"] - 1.0)
    return found.assign(
        known=known["ratio"],
        x=np.log(found["width"] / known["width"]),
        y=np.log(found["ratio"] / known["ratio"]),
        shape=1.0 + (known["ratio"] - 1.0) * shape,
    )


def known_and_asked(
    rows: pd.DataFrame, count: int
) -> Iterator[tuple[tuple[Row, ...], Row]]:
    """So many chains of a group, the narrowest first, and each other one of it."""
    chains = rows[rows["topk"] == 1].sort_values("width", kind="stable")
    chains = chains.drop_duplicates(["group", "width"])
    for _, own in chains.groupby("group", sort=False):
        each = own.to_dict("records")
        for known in combinations(each, count):
            yield from ((known, asked) for asked in each if asked not in known)


def between(rows: pd.DataFrame) -> pd.DataFrame:
    """Log errors of the power law through two chains, at each one between them."""
    found = []
    for ends, asked in known_and_asked(rows, 2):
        n, ratio = (np.log([end[name] for end in ends]) for name in ("width", "ratio"))
        if n[0] < np.log(asked["width"]) < n[1]:
            off = np.log(asked["ratio"]) - np.interp(np.log(asked["width"]), n, ratio)
            found.append((asked["server"], off))
    return pd.DataFrame(found, columns=["server", "off"])


def by_batch() -> pd.DataFrame:
    """Ratios of one K by batch.

    Lengths of two sources are not stated. A common factor of their ratios is unknown,
    and has no part in how they change with the batch.
    """
    rows, _ = record()
    rates = pd.read_csv(DATA / "sglang-autospec-22246.csv", skiprows=1)
    rates = rates[rates["steps"] != "AutoSpec"].set_index(["target", "steps"])
    grown = rates.xs("1", level="steps").reindex(rates.index, level="target") / rates
    auto = grown.rename(columns=lambda name: int(name[1:])).stack().reset_index()
    auto.columns = ["server", "steps", "batch", "ratio"]
    auto["width"] = auto["steps"].astype(int) + 1
    fixed = pd.read_csv(DATA / "served-pairs.csv", comment="#")
    fixed = fixed[fixed["method"] == "DSpark fixed K=7"]
    fixed = fixed.rename(columns={"target": "server", "concurrency": "batch"})
    fixed["ratio"] = fixed["plain_tok_s"] / fixed["spec_tok_s"]
    untold = pd.concat([auto[auto["width"] > 2], fixed.assign(width=8)])
    untold = untold.assign(text="", accepted=np.nan).dropna(subset="ratio")
    found = pd.concat([rows, untold], ignore_index=True)
    return found.sort_values("batch", kind="stable")


def neighbours() -> Iterator[tuple[list[Row], Row]]:
    """Both neighbours of a batch, and the batch between them, of one K and text."""
    for _, own in by_batch().groupby(["server", "text", "width"], sort=False):
        for one, asked, other in combinations(own.to_dict("records"), 3):
            yield [one, other], asked


def beyond_neighbours() -> pd.DataFrame:
    """Log distances of a ratio from the envelope of its neighbours'; 0 inside."""
    found = []
    for ends, asked in neighbours():
        nearest = sorted((asked["ratio"], *(end["ratio"] for end in ends)))[1]
        found.append((asked["server"], np.log(asked["ratio"] / nearest)))
    return pd.DataFrame(found, columns=["server", "off"])


def far_batches() -> Iterator[tuple[list[Row], Row]]:
    """A batch, and any other of the same server, K and text."""
    for _, own in by_batch().groupby(["server", "text", "width"], sort=False):
        rows = own.drop_duplicates("batch").to_dict("records")
        for one, asked in permutations(rows, 2):
            yield [one], asked


def to_far() -> pd.DataFrame:
    """Log changes of a ratio, over the root of the log distance of both batches."""
    found = []
    for [one], asked in far_batches():
        change = np.log(asked["ratio"] / one["ratio"])
        root = abs(np.log(asked["batch"] / one["batch"])) ** 0.5
        found.append((one["server"], change / root))
    return pd.DataFrame(found, columns=["server", "off"])
