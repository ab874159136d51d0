"""Judge what tables say of their own error, on machines whose cost is known.

    python -m benchmarks.known_truths --sweeps 12 --out truths.json

Prints, world by world, the share of truths inside the stated 95 % intervals with its
standard error over sweeps (all places of a sweep err together), how wide the intervals
are, and true errors beside the printed ones.
"""

import argparse
import sys
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import Answer, command, count, restart_on_one_thread
from benchmarks.known_truths.sweeps import Judged, judge
from benchmarks.known_truths.worlds import WORLDS, World
from evict_profile.records import to_mapping


@command
def main(arguments: Sequence[str]) -> None:
    """Judge all worlds, or those whose names hold a word."""
    parser = argparse.ArgumentParser(prog="known_truths", description=__doc__)
    parser.add_argument("--sweeps", type=count, default=12, help="sweeps of each world")
    parser.add_argument("--only", default="", help="worlds whose names hold this")
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="JSON of every sweep")
    asked = parser.parse_args(arguments)
    answer = Answer(asked.out, []) if asked.out else None
    worlds = [world for world in WORLDS if asked.only in world.name]
    jobs = [(w, seed) for w in worlds for seed in range(asked.sweeps)]
    with Pool(asked.jobs) as pool:
        judged = pool.starmap(judge, jobs, chunksize=1)
    rows = [
        {"world": world.name, "seed": seed, **to_mapping(each)}
        for (world, seed), each in zip(jobs, judged, strict=True)
    ]
    show(worlds, jobs, judged)
    if answer:
        answer.write(rows)


def show(
    worlds: Sequence[World],
    jobs: Sequence[tuple[World, int]],
    judged: Sequence[Judged],
) -> None:
    """One line a world, in %."""
    pairs = list(zip(jobs, judged, strict=True))
    rows = {}
    for world in worlds:
        own = pd.DataFrame([to_mapping(j) for (w, _), j in pairs if w == world])
        mean = 100.0 * own.mean()
        rows[world.name + " (apart)" * world.apart] = {
            **{name: _share(own[name]) for name in ("stairs", "small", "between")},
            "half-width": f"{mean.half_width:.2f}",
            "needed": f"{mean.needed:.2f}",
            "stairs p90": f"{mean.stairs_p90:.2f}",
            "true med / p90": f"{mean.between_median:.2f} / {mean.between_p90:.2f}",
            "printed med / p90": f"{mean.said_median:.2f} / {mean.said_p90:.2f}",
            "exported": f"{mean.passed:.0f}",
        }
    print(pd.DataFrame.from_dict(rows, orient="index").to_string())


def _share(values: pd.Series) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{100.0 * values.mean():.0f} +- {100.0 * error:.0f}"


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
