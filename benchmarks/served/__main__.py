"""Hold composed costs against runs that others served: errors, regret, coverage.

    python -m benchmarks.served [--figure docs/served.svg]

Every prediction comes from public kernel rows and overheads fitted to other
deployments. Exit code 1 where an aim is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec.structs import asdict

from benchmarks.common import command
from benchmarks.served import judge
from benchmarks.served.record import BROKEN, DATA, angelslim, not_judged
from evict_profile.stats import Floats

SETTING = "steps/topk/n"


def main_tables() -> list[tuple[str, float, float, bool]]:
    """Print what the record says; the aims with what was reached."""
    pd.set_option("display.width", 150, "display.max_columns", 20)
    overheads = judge.held_out()
    rows = judge.speedups(overheads)
    rows[SETTING] = (
        rows[["steps", "topk", "num_draft_tokens"]].astype(str).agg("/".join, axis=1)
    )
    show_overheads(overheads)
    for axis in ("deployment", SETTING, "dataset"):
        print(f"\nSpeed-up, predicted over served, by {axis}\n{by(rows, axis)}")
    print(f"\nSpeed lost against the best of five settings\n{regrets(rows)}")
    return aims(rows, overheads)


def aims(
    rows: pd.DataFrame, overheads: dict[str, judge.Overheads]
) -> list[tuple[str, float, float, bool]]:
    """Each aim: its name, the number, its limit, and whether more is better."""
    off, one = errors(rows), judge.from_one_run(overheads)
    everywhere = judge.of_all()
    other = judge.elsewhere(everywhere)
    grown = judge.growth(overheads["qwen3-235b-a22b"])
    print(
        f"\nQwen3-235B, step of 4 drafts over 1, relative to batch 1\n{grown.round(3)}"
    )
    own, lost = errors(one), judge.regret(rows, judge.CHOICES["predicted best"])
    inside = held(pd.concat([rows, other]))
    signs = np.mean((one["predicted"] > 1.0) == (one["speedup"] > 1.0))
    growth_off = np.abs(np.log(grown["predicted"] / grown["served"])).max()
    return [
        ("speed-up, median error", np.median(np.abs(off)), 0.04, False),
        ("speed-up, p90 error", np.quantile(np.abs(off), 0.9), 0.10, False),
        ("other engines, median error", np.median(np.abs(errors(other))), 0.15, False),
        ("chosen setting, mean loss", lost.mean(), 0.01, False),
        ("chosen setting, worst loss", lost.max(), 0.05, False),
        ("95 % intervals that hold", inside, 0.90, True),
        ("95 % intervals, at most", inside, 0.99, False),
        ("one own run, median error", np.median(np.abs(own)), 0.04, False),
        ("one own run, p90 error", np.quantile(np.abs(own), 0.9), 0.10, False),
        ("one own run, sign right", signs, 0.95, True),
        ("one own run, 95 % that hold", held(one), 0.90, True),
        ("growth with batch, worst error", growth_off, 0.08, False),
    ]


def errors(rows: pd.DataFrame) -> Floats:
    """Log of predicted over served speed-up, float64 [rows]."""
    return np.log((rows["predicted"] / rows["speedup"]).to_numpy(float))


def held(rows: pd.DataFrame) -> float:
    """Share of served speed-ups inside their 95 % interval."""
    return float(rows["speedup"].between(rows["low"], rows["high"]).mean())


def by(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Errors of groups of rows, in per cent."""

    def line(group: pd.DataFrame) -> pd.Series:
        off = errors(group)
        return pd.Series(
            {
                "rows": len(group),
                "median error %": 100 * np.median(np.abs(off)),
                "p90 %": 100 * np.quantile(np.abs(off), 0.9),
                "bias %": 100 * np.median(off),
                "dummy tokens %": 100
                * np.median(np.abs(np.log(group["dummy"] / group["speedup"]))),
                "inside 95 %": 100 * held(group),
            }
        )

    found = [line(group).rename(name) for name, group in rows.groupby(axis)]
    return pd.DataFrame([*found, line(rows).rename("all")]).round(1)


def regrets(rows: pd.DataFrame) -> pd.DataFrame:
    """Loss of each way to choose, in per cent."""
    lost = {name: judge.regret(rows, how) for name, how in judge.CHOICES.items()}
    found = {
        n: {"mean %": 100 * x.mean(), "worst %": 100 * x.max()} for n, x in lost.items()
    }
    return pd.DataFrame(found).T.round(1)


def show_overheads(overheads: dict[str, judge.Overheads]) -> None:
    """The amounts that each deployment was judged with, and those of the record."""
    everywhere = judge.of_all()
    known = {f"without {name}": each for name, each in overheads.items()}
    table = {name: asdict(each.amounts) for name, each in known.items()}
    table["record"] = asdict(everywhere.amounts)
    table["spread"] = asdict(everywhere.spread)
    print(pd.DataFrame(table).T.round(2))
    shares = pd.read_csv(DATA / "unions.csv")
    known_shares = shares["union"].astype(str).str.fullmatch(r"[\d.]+")
    ratio = (
        shares[known_shares]["union"].astype(float) / shares[known_shares]["uniform"]
    )
    print(f"measured unions over uniform ones: {ratio.min():.2f} to {ratio.max():.2f}")
    for model, count in not_judged().items():
        why = BROKEN.get(model, "no public kernel rows compose a table of it")
        print(f"not judged: {count} runs of {model}: {why}")
    pairs = pd.read_csv(DATA / "served-pairs.csv", comment="#")
    left = len(pairs) - len(angelslim())
    print(f"not judged: {left} pairs elsewhere, of GPUs or models without such rows")


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Predicted against served speed-up, each with its interval."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "served"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, group in rows.groupby("deployment"):
        reach = [group["predicted"] - group["low"], group["high"] - group["predicted"]]
        axes.errorbar(
            group["speedup"],
            group["predicted"],
            yerr=np.array(reach),
            fmt="o",
            ms=3.5,
            lw=0.5,
            alpha=0.75,
            label=str(name),
        )
    axes.scatter(
        rows["speedup"],
        rows["dummy"],
        marker="x",
        s=12,
        c="0.6",
        lw=0.8,
        label="start-up profile, identical tokens",
    )
    ends = (0.9, 3.4)
    axes.plot(ends, ends, c="0.3", lw=0.8)
    axes.set(
        xlim=(0.9, 2.7),
        ylim=ends,
        xlabel="served speed-up over plain decoding",
        ylabel="predicted speed-up",
    )
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


@command
def main(arguments: Sequence[str]) -> int:
    """Print the tables and the aims; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.served", description=__doc__)
    parser.add_argument("--figure", type=Path, help="where to draw it")
    given = parser.parse_args(arguments)
    reached = main_tables()
    print("\naim                             reached   limit")
    missed = 0
    for name, value, limit, more in reached:
        good = value >= limit if more else value <= limit
        missed += not good
        print(f"{name:<32}{value:>7.1%}{limit:>8.0%}  {'' if good else 'MISSED'}")
    if given.figure:
        draw(judge.speedups(judge.held_out()), given.figure)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
