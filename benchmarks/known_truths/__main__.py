"""Judge what tables say of their own error, on machines whose cost is known.

    python -m benchmarks.known_truths intervals --sweeps 12 --out truths.json
    python -m benchmarks.known_truths gates --sweeps 100
    python -m benchmarks.known_truths rechecks --sweeps 50

Intervals: world by world, the share of truths inside the stated 95 % intervals with its
standard error over sweeps (all places of a sweep err together), how wide the intervals
are, and true errors beside the printed ones. Gates: run by run, the share refused, of
machines that changed and of healthy ones. Rechecks: the share called drifted.
Exit code 1 where all worlds were judged and a promise of the module is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from benchmarks.common import Answer, command, count, restart_on_one_thread
from benchmarks.known_truths import gates, intervals, rechecks
from evict_profile.errors import ConfigError
from evict_profile.progress import progress_bar

STUDIES: dict[str, Any] = {
    "intervals": intervals,
    "gates": gates,
    "rechecks": rechecks,
}
Job = tuple[str, int, int]
"""A study, the place of what is judged in it, and a seed."""


@command
def main(arguments: Sequence[str]) -> int:
    """Judge all worlds, or those whose names hold a word."""
    parser = argparse.ArgumentParser(prog="known_truths", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--sweeps", type=count, default=12, help="sweeps of each world")
    parser.add_argument("--only", default="", help="worlds whose names hold this")
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="JSON of every sweep")
    asked = parser.parse_args(arguments)
    answer = Answer(asked.out, []) if asked.out else None
    study = STUDIES[asked.study]
    names = [known.name for known in study.KNOWN]
    places = [place for place, name in enumerate(names) if asked.only in name]
    if not places:
        raise ConfigError(
            f"--only {asked.only}: no world's name holds it; of {', '.join(names)}"
        )
    jobs = [
        (asked.study, place, seed) for place in places for seed in range(asked.sweeps)
    ]
    rows: list[dict[str, Any]] = []
    with Pool(asked.jobs) as pool, progress_bar(Console(stderr=True)) as shown:
        for done, found in enumerate(pool.imap(_judged, jobs), start=1):
            rows += found
            shown.show(f"judged {found[0]['world']}", done, len(jobs) - done)
            if answer:
                answer.keep(rows)
    frame = pd.DataFrame(rows)
    study.show(frame)
    if answer:
        answer.write(rows)
    missed = list(study.misses(frame))
    for promise in missed:
        print(f"missed: {promise}")
    return int(bool(missed) and len(places) == len(names))


def _judged(job: Job) -> list[dict[str, Any]]:
    study, place, seed = job
    known = STUDIES[study].KNOWN[place]
    rows = STUDIES[study].judged(known, seed)
    return [{"world": known.name, "seed": seed, **row} for row in rows]


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
