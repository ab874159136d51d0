"""Judge what tables say of their own error, on machines whose cost is known.

    python -m benchmarks.known_truths --sweeps 12 --out truths.json
    python -m benchmarks.known_truths --gates --sweeps 100

Prints, world by world, the share of truths inside the stated 95 % intervals with its
standard error over sweeps (all places of a sweep err together), how wide the intervals
are, and true errors beside the printed ones. Then the same of what one more expert,
token or request costs: sweeps whose interval holds it, and half-widths in % of it, as
stated in the median and as 95 % of the sweeps would have needed. With --gates, run by
run the share that gates refuse, of machines that changed and of healthy ones.

Exit code 1 where all worlds were judged and a promise is missed: on machines of the
fitted class `LEAST_INSIDE` of the truths at the levels, half-widths of at most
`MOST_TOO_WIDE` times what is needed in the median world, few healthy machines refused,
most changed ones.
"""

import argparse
import sys
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.common import Answer, command, count, restart_on_one_thread
from benchmarks.known_truths.runs import GATES, RUNS, Run, refusals
from benchmarks.known_truths.sweeps import judge
from benchmarks.known_truths.worlds import WORLDS, World
from evict_profile.errors import ConfigError
from evict_profile.progress import progress_bar
from evict_profile.records import to_mapping

LEAST_INSIDE, MOST_TOO_WIDE = 0.94, 2.0
MOST_HEALTHY, LEAST_CHANGED = 0.01, 0.90


@command
def main(arguments: Sequence[str]) -> int:
    """Judge all worlds, or those whose names hold a word."""
    parser = argparse.ArgumentParser(prog="known_truths", description=__doc__)
    parser.add_argument("--sweeps", type=count, default=12, help="sweeps of each world")
    parser.add_argument("--only", default="", help="worlds whose names hold this")
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    parser.add_argument("--gates", action="store_true", help="judge gates instead")
    parser.add_argument("--out", type=Path, help="JSON of every sweep")
    asked = parser.parse_args(arguments)
    answer = Answer(asked.out, []) if asked.out else None
    known: Sequence[World | Run] = RUNS if asked.gates else WORLDS
    worlds = [world for world in known if asked.only in world.name]
    if not worlds:
        names = ", ".join(world.name for world in known)
        raise ConfigError(f"--only {asked.only}: no world's name holds it; of {names}")
    jobs = [(w, seed) for w in worlds for seed in range(asked.sweeps)]
    rows: list[dict[str, Any]] = []
    with Pool(asked.jobs) as pool, progress_bar(Console(stderr=True)) as shown:
        for row in pool.imap(_judged, jobs):
            rows.append(row)
            shown.show(f"judged {row['world']}", len(rows), len(jobs) - len(rows))
            if answer:
                answer.keep(rows)
    judged = pd.DataFrame(rows)
    (show_gates if asked.gates else show)(judged)
    if answer:
        answer.write(rows)
    missed = misses_of_gates(judged) if asked.gates else misses(judged)
    for promise in missed:
        print(f"missed: {promise}")
    return int(bool(missed) and len(worlds) == len(known))


def misses(judged: pd.DataFrame) -> list[str]:
    """Promises of intervals that are not met."""
    inside = float(judged.loc[judged["in_class"], "stairs"].mean())
    worlds = judged.groupby("world")[["half_width", "needed"]].mean()
    wide = float((worlds["half_width"] / worlds["needed"]).median())
    return [
        *(
            [f"{inside:.1%} of truths of the fitted class are inside"]
            if inside < LEAST_INSIDE
            else []
        ),
        *([f"half-widths are {wide:.1f} times those needed"] * (wide > MOST_TOO_WIDE)),
    ]


def misses_of_gates(judged: pd.DataFrame) -> list[str]:
    """Promises of gates that are not met."""
    refused = judged[list(GATES)].any(axis=1).groupby(judged["bad"]).mean()
    healthy, changed = float(refused.get(False, 0.0)), float(refused.get(True, 1.0))
    return [
        *([f"{healthy:.1%} of healthy refused"] if healthy > MOST_HEALTHY else []),
        *([f"{changed:.1%} of changed refused"] if changed < LEAST_CHANGED else []),
    ]


def _judged(job: tuple[World | Run, int]) -> dict[str, Any]:
    world, seed = job
    row = {"world": world.name, "seed": seed}
    if isinstance(world, Run):
        refused = refusals(world, seed)
        return {**row, "bad": world.bad, **{gate: gate in refused for gate in GATES}}
    row |= {"apart": world.apart, "in_class": world.in_class}
    return {**row, **to_mapping(judge(world, seed))}


def show_gates(judged: pd.DataFrame) -> None:
    """One line a run: the share refused by any gate and by each, in %."""
    judged["refused"] = judged[list(GATES)].any(axis=1)
    for bad, runs in judged.groupby("bad"):
        shares = runs.groupby("world", sort=False)[["refused", *GATES]].mean()
        print(f"\n{'must' if bad else 'must not'} be refused, {len(runs)} runs")
        print((100.0 * shares).round(1).to_string())


def show(judged: pd.DataFrame) -> None:
    """One line a world in each of two tables, in %."""
    rows, marginal = {}, {}
    for (name, apart), own in judged.groupby(["world", "apart"], sort=False):
        mean = 100.0 * own.mean(numeric_only=True)
        rows[name + " (apart)" * apart] = {
            **{name: _share(own[name]) for name in ("stairs", "small", "between")},
            "half-width": f"{mean.half_width:.2f}",
            "needed": f"{mean.needed:.2f}",
            "stairs p90": f"{mean.stairs_p90:.2f}",
            "true med / p90": f"{mean.between_median:.2f} / {mean.between_p90:.2f}",
            "printed med / p90": f"{mean.said_median:.2f} / {mean.said_p90:.2f}",
            "exported": f"{100.0 * own['passed'].mean():.0f}",
        }
        marginal[name] = _marginal(own["marginal"].tolist())
    print(pd.DataFrame.from_dict(rows, orient="index").to_string())
    print(pd.DataFrame.from_dict(marginal, orient="index").to_string())


def _marginal(sweeps: list[dict[str, tuple[bool, float, float]]]) -> dict[str, str]:
    """The column of each quantity: sweeps inside, half-width stated and needed."""
    columns = {}
    for name in sweeps[0]:
        inside, half, error = np.array([sweep[name] for sweep in sweeps]).T
        stated, needed = 100.0 * np.median(half), 100.0 * np.percentile(error, 95)
        columns[name] = f"{100.0 * inside.mean():.0f} [{stated:.2g}, {needed:.2g}]"
    return columns


def _share(values: pd.Series) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{100.0 * values.mean():.0f} +- {100.0 * error:.0f}"


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
