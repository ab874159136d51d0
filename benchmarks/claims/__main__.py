"""Judge EVICT's claims on recordings of the small world, beside honest baselines.

    python -m benchmarks.claims [--recordings runs/results] [--out docs/results/data]

It reads the draft trees in `moe`, of temperature 0 and 1, and writes a CSV a study.
`make results` records them first. `--study NAME` does one alone.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.claims import evict, fixed
from benchmarks.claims.world import World
from benchmarks.common import command, restart_on_one_thread
from evict_profile.io import make_folder, write_text

Load = Callable[[float], World]
"""The recording of one temperature."""


def claims(load: Load) -> Iterator[Any]:
    return evict.claims(load(0.0), load(1.0))


def fixed_trees(load: Load) -> Iterator[Any]:
    return fixed.rows(load(0.0))


STUDIES = {"claims": claims, "fixed": fixed_trees}


@command
def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--recordings", type=Path, default=Path("runs/results"))
    add("--out", type=Path, default=Path("docs/results/data"))
    add("--study", choices=STUDIES, action="append", help="repeatable")
    given = parser.parse_args(arguments)
    load = partial(World.load, given.recordings / "moe")
    make_folder(given.out)
    for name in given.study or STUDIES:
        rows = pd.DataFrame(map(asdict, STUDIES[name](load)))
        rows.columns = [str(column).replace("_", " ") for column in rows]
        path = given.out / f"evict-{name}.csv"
        write_text(rows.to_csv(index=False, lineterminator="\n"), path)
        print(path, rows.to_string(index=False), sep="\n", flush=True)


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
