"""Hold what `ServedTable` answers against runs that others served.

    python -m benchmarks.served [--out docs/research/data/served.json]

Fits the constants of `evict_profile.served.growth`, each server left out in turn, and
prints errors beside those of rivals. Exit code 1 where a constant is not the fitted
one, or where an aim is missed that is not listed as missed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import command
from benchmarks.served import fits, judge
from benchmarks.served.record import record
from evict_profile.io import write_json
from evict_profile.served import growth

AIMS = (
    ("plain and one K, inside 95 %", 90.0, True),
    ("plain and one K, high over low", 1.6, False),
    ("plain and one K, settled", 60.0, True),
    ("plain and one K, surely wrong", 0.0, False),
    ("plain and two K, surely wrong", 0.0, False),
    ("between batches, inside 95 %", 90.0, True),
    ("between batches, surely wrong", 0.0, False),
    ("plain alone at a batch, inside 95 %", 90.0, True),
    ("plain alone at a batch, surely wrong", 0.0, False),
    ("no run, inside 95 %", 90.0, True),
    ("no run, surely wrong", 0.0, False),
)
"""A finding, its limit, and whether more is better."""

MISSED = ("no run, surely wrong", "plain alone at a batch, surely wrong")
"""A draft model under vLLM took 4.0 and 4.4 plain steps where n^0.37 says 1.9."""

ROUNDING = 0.0051

RIVALS = {
    "no run": {
        "n^p": "power",
        "1 + c (n - 1)": "slope",
        "speed-up 1": "accepted",
        "table": "table",
        "mean of table and n^p": "mean",
        "AISimulate": "simulated",
    },
    "plain and one K": {
        "n^p": "power",
        "1 + c (n - 1)": "slope",
        "ratio stays": "known",
        "speed-up 1": "accepted",
        "table": "shape",
    },
}
"""Columns of what is asked, by what is known. The first is the package's."""

GROUPS = {
    "chosen on": ("Qwen3-30B-A3B-I", "Qwen3-Coder-30B-A3B-I", "Qwen3-235B", "Kimi-K2"),
    "composable": ("Qwen3-Next", "Ling-flash", "Qwen3-Coder-480B"),
}
"""SpecBundle's deployments that forms of estimates were chosen on, and others."""


def questions() -> dict[str, pd.DataFrame]:
    """What is asked, by what is known, with held-out predictions as columns."""
    asked = {"no run": fits.from_nothing()}
    asked["plain and one K"] = fits.from_one(asked["no run"])
    for known, rows in asked.items():
        own = fits.held_out(rows, fits.power)
        slope = fits.held_out(rows, fits.one_parameter)["value"]
        mean = (own["value"] * rows["table"]) ** 0.5
        more = {"power": own["value"], "slope": slope, "mean": mean, "same": 1.0}
        asked[known] = rows.assign(**more, low=own["low"], high=own["high"])
    return asked


def constants(none: pd.DataFrame, one: pd.DataFrame) -> dict[str, float]:
    """Fitted values of `growth`, by name."""
    between, beside = fits.between(none), fits.beyond_neighbours()
    far = fits.to_far()
    covered = none.dropna(subset="table")
    return {
        "EXPONENT": fits.exponent(none),
        "ERROR": fits.error(none, judge.errors(none, "power")),
        "OWN_EXPONENT": fits.exponent(one),
        "OWN_ERROR": fits.error(one, judge.errors(one, "power")),
        "BETWEEN_ERROR": fits.error(between, between["off"].to_numpy()),
        "BATCH_ERROR": fits.error(beside, beside["off"].to_numpy()),
        "FAR_ERROR": fits.error(far, far["off"].to_numpy()),
        "ESTIMATE_ERROR": fits.error(covered, judge.errors(covered, "mean")),
    }


def rivals(asked: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Errors of each rival where it has rows, with the package's on the same rows."""
    lines = {}
    for known, columns in RIVALS.items():
        for name, column in columns.items():
            there = asked[known].dropna(subset=column)
            off = pd.Series(judge.errors(there, column), there.index)
            lines[f"{known}, {name}"] = {
                "rows": len(there),
                "servers": there["server"].nunique(),
                **spread(there, column),
                "servers once": 100 * off.groupby(there["server"]).median().mean(),
                **spread(there, "power", "package "),
            }
    return pd.DataFrame(lines).T.round(1)


def spread(rows: pd.DataFrame, column: str, name: str = "") -> dict[str, float]:
    """Median and 90th percentile of the sizes of errors, in per cent."""
    middle, most = 100.0 * np.quantile(judge.errors(rows, column), (0.5, 0.9))
    return {f"{name}median": float(middle), f"{name}p90": float(most)}


def covered(none: pd.DataFrame, one: pd.DataFrame) -> pd.DataFrame:
    """How the package's answers hold, by what is known; shares in per cent.

    "Held out" has the intervals of the other servers in place of the constants'.
    """
    answers = {
        "no run": judge.without_runs(none),
        "no run, held out": none,
        "plain and one K, held out": one,
        "plain and one K": judge.with_known(none, 1),
        "plain and two K": judge.with_known(none, 2),
        "between batches": judge.between_batches(),
        "plain alone at a batch": judge.plain_alone(),
    }
    return pd.DataFrame({k: judge.coverage(v) for k, v in answers.items()}).T.round(2)


def findings(asked: dict[str, pd.DataFrame]) -> dict[str, float]:
    """What pages state: the only source of their numbers."""
    none, one = asked.values()
    found = constants(none, one)
    for table in (rivals(asked), covered(none, one)):
        found |= {f"{k}, {n}": v for (k, n), v in table.stack().items()}
    for name, models in GROUPS.items():
        own = none[none["model"].str.startswith(models)]
        found[f"{name}, rows"] = len(own)
        for column in ("power", "table", "mean"):
            found |= spread(own, column, f"{name}, {column}, ")
    found |= {f"left out, {why.partition(':')[0]}": n for why, n in record()[1].items()}
    for name, column in {**RIVALS["no run"], "longest length": "same"}.items():
        own = none.dropna(subset=column)
        for said, taken in ((name, column), (f"package on rows of {name}", "power")):
            found[f"loss, {said}"] = judge.loss(own, taken)
    return {k: round(float(v), 2) for k, v in found.items()}


def faults(found: dict[str, float]) -> Iterator[str]:
    """Constants that are not the fitted ones, and aims that are missed."""
    for name in filter(str.isupper, found):
        own = getattr(growth, name)
        if abs(own - found[name]) > ROUNDING:
            yield f"growth.{name} is {own}, and the fit {found[name]:.2f}"
    for name, limit, more in AIMS:
        sign = 1.0 if more else -1.0
        if sign * found[name] < sign * limit and name not in MISSED:
            yield f"{name}: {found[name]} for an aim of {limit}"


@command
def main(arguments: Sequence[str]) -> int:
    """Print the tables; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.served", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON of what pages state")
    out = parser.parse_args(arguments).out
    pd.set_option("display.width", 160, "display.max_columns", 20)
    asked = questions()
    found = findings(asked)
    print(pd.Series(record()[1], name="rows left out").to_string())
    print(f"\nErrors of a step's ratio in per cent, held out\n{rivals(asked)}")
    print(f"\nAnswers\n{covered(*asked.values())}")
    print(f"\nServers without a run\n{judge.by_server(asked['no run'])}")
    print("\nfindings, in per cent but for counts, constants and ratios")
    for name, value in found.items():
        print(f"{name:<60}{value:>8.2f}{'  MISSED' * (name in MISSED)}")
    if out:
        write_json(found, out)
    missed = list(faults(found))
    print(*missed, sep="\n", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
