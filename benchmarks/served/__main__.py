"""Compare composed costs with runs that others served: errors, regret, coverage.

    python -m benchmarks.served [--figure docs/served.svg] \
        [--out docs/research/data/served.json]

Every prediction comes from public kernel rows and overheads fitted to other
deployments. Simpler rivals stand beside it. Exit code 1 where an aim is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import asdict

from benchmarks.common import command
from benchmarks.served import judge, own, unions
from benchmarks.served.record import (
    BROKEN,
    COMPOSED,
    DATA,
    GPT_OSS,
    new_2026,
    not_judged,
)
from evict_profile.io import write_json
from evict_profile.stats import Floats
from evict_profile.table.overheads import Overheads

SETTING = "steps/topk/n"
GROWN = "qwen3-235b-a22b"
RIVALS = ("identical tokens", "one parameter", "weight bytes")
AWAY_RIVALS = ("one parameter", "no gain", "its other runs")


def findings(rows: pd.DataFrame, away: pd.DataFrame) -> dict[str, float]:
    """What pages state of the record, in per cent: the only source of their numbers."""
    overheads = judge.held_out()
    one, grown = own.of_specbundle(overheads), judge.growth(overheads[GROWN])
    other, near = own.elsewhere(), own.elsewhere(near=True)
    apart = own.difference(pd.concat([one, other]))
    losses = {name: judge.regret(rows, how) for name, how in judge.CHOICES.items()}
    lost, plain = losses["predicted best"], own.plain_alone(overheads)
    others = plain[plain["deployment"].isna()]
    levels = others[~own.has_draft_model(others)]
    growth_off = np.abs(np.log(grown["predicted"] / grown["served"])).max()
    shares = {
        "runs": len(rows) / 100,
        **spread("prefill as served", errors(rows)),
        **spread("as advised", errors(rows, "advised")),
        "as advised, bias": np.median(errors(rows, "advised")),
        "as advised, inside 95 %": held(rows, "advised_low", "advised_high"),
        "prefill as served, inside 95 %": held(rows),
        **{k: v for n in RIVALS for k, v in spread(n, errors(rows, n)).items()},
        **{f"{name}, mean loss": each.mean() for name, each in losses.items()},
        "predicted best, worst loss": lost.max(),
        **spread("one own run", errors(one)),
        **spread("one own run, its ratio stays", errors(one, "stays")),
        **spread("one own run elsewhere", errors(other, "advised")),
        **spread("one own run elsewhere, its ratio stays", errors(other, "stays")),
        **spread("one own run, batch near", errors(near, "advised")),
        **spread("one own run, batch near, its ratio stays", errors(near, "stays")),
        "one own run less its ratio stays": apart.value,
        "one own run less its ratio stays, low": apart.low,
        "one own run less its ratio stays, high": apart.high,
        "one own run, inside 95 %": held(one),
        "growth with batch, worst": growth_off,
        **spread("elsewhere", errors(away, "advised")),
        "elsewhere, inside 95 %": held(away, "advised_low", "advised_high"),
        "elsewhere, slower but wholly above 1": np.mean(
            (away["advised_low"] > 1.0) & (away["speedup"] < 1.0)
        ),
        **{
            k: v
            for n in AWAY_RIVALS
            for k, v in spread(f"elsewhere, {n}", errors(away, n)).items()
        },
        **spread("plain run", errors(plain[~plain["deployment"].isna()], "advised")),
        **spread("plain run elsewhere", errors(others, "advised")),
        "plain run elsewhere, inside 95 %": held(others, "advised_low", "advised_high"),
        **spread("plain run elsewhere, EAGLE-3", errors(levels, "advised")),
        **of_unions(),
    }
    return {name: round(100 * float(share), 1) for name, share in shares.items()}


def of_unions() -> dict[str, float]:
    """Errors of unions by what is known of a model, and what they leave to growth."""
    found = {}
    for way, errors_of in unions.judged().items():
        off = np.abs(np.concatenate(list(errors_of.values())))
        found |= spread(f"union, {way}", off) | {f"union, {way}, worst": off.max()}
    tables = (*dict(COMPOSED.values()), GPT_OSS)
    by_batch = {b: unions.growth_error(tables, b) for b in (1, 8)}
    return found | {f"growth by unions, batch {b}": v for b, v in by_batch.items()}


AIMS = (
    ("prefill as served, median", 4.0, False),
    ("prefill as served, p90", 10.0, False),
    ("as advised, median", 5.0, False),
    ("as advised, p90", 10.0, False),
    ("predicted best, mean loss", 1.0, False),
    ("predicted best, worst loss", 5.0, False),
    ("as advised, inside 95 %", 90.0, True),
    ("as advised, inside 95 %", 99.0, False),
    ("one own run, median", 4.0, False),
    ("one own run, p90", 10.0, False),
    ("one own run, inside 95 %", 90.0, True),
    ("growth with batch, worst", 8.0, False),
    ("elsewhere, inside 95 %", 85.0, True),
    ("elsewhere, slower but wholly above 1", 0.0, False),
)
"""A finding, its limit in per cent, and whether more is better."""


def spread(name: str, off: Floats) -> dict[str, float]:
    """Median and 90th percentile of the size of errors."""
    middle, most = np.quantile(np.abs(off), (0.5, 0.9))
    return {f"{name}, median": middle, f"{name}, p90": most}


def errors(rows: pd.DataFrame, column: str = "predicted") -> Floats:
    """Log of predicted over served speed-up, float64 [rows]."""
    return np.log((rows[column] / rows["speedup"]).to_numpy(float))


def held(rows: pd.DataFrame, low: str = "low", high: str = "high") -> float:
    """Share of served speed-ups inside their 95 % interval."""
    return float(rows["speedup"].between(rows[low], rows[high]).mean())


def by(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Errors of groups of rows, in per cent."""
    groups = {**dict(iter(rows.groupby(axis))), "all": rows}
    lines = {}
    for name, group in groups.items():
        off = errors(group)
        lines[name] = {
            "rows": len(group),
            "median error %": _median(group, "predicted"),
            "p90 %": 100 * np.quantile(np.abs(off), 0.9),
            "bias %": 100 * np.median(off),
            "as advised %": _median(group, "advised"),
            **{f"{rival} %": _median(group, rival) for rival in RIVALS},
            "inside 95 %": 100 * held(group),
        }
    return pd.DataFrame(lines).T.round(1)


def away_rows(away: pd.DataFrame) -> pd.DataFrame:
    """Errors and coverage of each server that nothing was fitted to."""
    lines = {
        name: {
            "rows": len(own),
            "median error %": _median(own, "advised"),
            **{f"{rival} %": _median(own, rival) for rival in AWAY_RIVALS},
            "growth error": growth_rms(own),
            "inside 95 %": 100 * held(own, "advised_low", "advised_high"),
        }
        for name, own in away.groupby("server")
    }
    return pd.DataFrame(lines).T.round(2)


def _median(rows: pd.DataFrame, column: str) -> float:
    return float(100 * np.median(np.abs(errors(rows, column))))


def growth_rms(rows: pd.DataFrame) -> float:
    """Root mean square log of predicted over served time beyond plain decoding."""
    served = rows["accept_length"] / rows["speedup"]
    return float(np.sqrt(np.square(np.log((rows["ratio"] - 1) / (served - 1))).mean()))


def regrets(rows: pd.DataFrame) -> pd.DataFrame:
    """Loss of each way to choose, in per cent."""
    lost = {name: judge.regret(rows, how) for name, how in judge.CHOICES.items()}
    found = pd.DataFrame(lost).agg(["mean", "max"]).T
    return (100 * found.set_axis(["mean %", "worst %"], axis=1)).round(1)


def show_overheads(overheads: dict[str, Overheads]) -> None:
    """The amounts that each deployment was judged with, and those of the record."""
    everywhere = judge.of_all()
    known = {f"without {name}": each for name, each in overheads.items()}
    table = {name: asdict(each.amounts) for name, each in known.items()}
    table["record"] = asdict(everywhere.amounts)
    table["spread"] = asdict(everywhere.spread)
    print(pd.DataFrame(table).T.round(2))
    shares = pd.read_csv(DATA / "unions.csv")
    ratio = pd.to_numeric(shares["union"], errors="coerce") / shares["uniform"]
    print(f"measured unions over uniform ones: {ratio.min():.2f} to {ratio.max():.2f}")
    for model, count in not_judged().items():
        why = BROKEN.get(model, "no public kernel rows compose a table of it")
        print(f"not judged: {count} runs of {model}: {why}")
    pairs = len(pd.read_csv(DATA / "served-pairs.csv", comment="#"))
    pairs += len(pd.read_csv(DATA / "new-2026.csv", comment="#")) - len(new_2026())
    print(f"not judged: {pairs} pairs elsewhere, of GPUs or models without such rows")


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Predicted against served speed-up, each with its interval."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "served"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    dots: dict[str, Any] = {"fmt": "o", "ms": 3.5, "lw": 0.5, "alpha": 0.75}
    crosses: dict[str, Any] = {"marker": "x", "s": 12, "c": "0.6", "lw": 0.8}
    for name, each in rows.groupby("deployment"):
        low, value, high = (each[end] for end in ("low", "predicted", "high"))
        bars = np.array([value - low, high - value])
        axes.errorbar(each["speedup"], value, yerr=bars, label=str(name), **dots)
    profile = "start-up profile, identical tokens"
    axes.scatter(rows["speedup"], rows["identical tokens"], label=profile, **crosses)
    ends = (0.9, 3.4)
    axes.plot(ends, ends, c="0.3", lw=0.8)
    axes.set(xlim=(0.9, 2.7), ylim=ends)
    axes.set_xlabel("served speed-up over plain decoding")
    axes.set_ylabel("predicted speed-up")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


def show(rows: pd.DataFrame, away: pd.DataFrame) -> None:
    """Print errors by group, and what is lost by choosing."""
    overheads = judge.held_out()
    rows[SETTING] = (
        rows[["steps", "topk", "num_draft_tokens"]].astype(str).agg("/".join, axis=1)
    )
    show_overheads(overheads)
    for axis in ("deployment", SETTING, "dataset"):
        print(f"\nSpeed-up, predicted over served, by {axis}\n{by(rows, axis)}")
    print(f"\nSpeed lost against the best of five settings\n{regrets(rows)}")
    print(f"\nServers that nothing was fitted to, as advised\n{away_rows(away)}")
    show_own(overheads)
    print("\nPlain step known: errors in per cent, and powers that others choose")
    print(own.by_plain(own.plain_alone(overheads)))
    grown = judge.growth(overheads[GROWN]).round(3)
    print(f"\nQwen3-235B, step of 4 drafts over 1, relative to batch 1\n{grown}")


def show_own(overheads: dict[str, Overheads]) -> None:
    """One own run against its ratio, where the settings or the batches differ."""
    one, other = own.of_specbundle(overheads), own.elsewhere()
    every = pd.concat([one, other])
    print("\nOne own run, and the rival that its ratio stays; errors in per cent")
    print(own.against(every))
    apart = own.difference(every)
    print(
        f"difference, each of {every['deployment'].nunique()} deployments once: "
        f"{apart.value:+.1%} ({apart.low:+.1%} to {apart.high:+.1%})"
    )
    print(f"share chosen by the other deployments: {own.shares_chosen(overheads)}")
    print(
        f"from another batch, at most twice or half\n{own.against(own.elsewhere(True))}"
    )


@command
def main(arguments: Sequence[str]) -> int:
    """Print the tables and the aims; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.served", description=__doc__)
    parser.add_argument("--figure", type=Path, help="where to draw it")
    parser.add_argument("--out", type=Path, help="JSON of what pages state")
    given = parser.parse_args(arguments)
    pd.set_option("display.width", 160, "display.max_columns", 20)
    rows, away = judge.speedups(judge.held_out()), judge.elsewhere()
    show(rows, away)
    found = findings(rows, away)
    print(f"\n{'aim':<40}reached   limit")
    missed = 0
    for name, limit, more in AIMS:
        good = found[name] >= limit if more else found[name] <= limit
        missed += not good
        said = "" if good else "  MISSED"
        print(f"{name:<40}{found[name]:>6.1f}%{limit:>7.0f}%{said}")
    print("\nfindings, in per cent (runs: a number)")
    for name, value in found.items():
        print(f"{name:<40}{value:>6.1f}")
    if given.figure:
        draw(rows, given.figure)
    if given.out:
        write_json(found, given.out)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
