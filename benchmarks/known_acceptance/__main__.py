"""Judge what replay and calibration say of their own error, where acceptance is known.

    python -m benchmarks.known_acceptance --trials 100 --out acceptance.json

Prompts are drawn from populations that are known; replayed, calibrated and judged by
the real commands' code. Prints the share of truths inside the stated 95 % intervals
with its standard error over trials, the stated half-width over the one that would hold
95 % of the errors, and how often a verdict is sure to adapt, and wrongly: the fixed
setting that it names is really as fast. "Of ties" all adaptive policies are made as
fast as the best fixed setting of all, which a verdict on few prompts may not name.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.common import Answer, command, count, restart_on_one_thread
from benchmarks.known_acceptance.calibrations import (
    judged_activation,
    judged_calibration,
    true_activation,
)
from benchmarks.known_acceptance.findings import Finding
from benchmarks.known_acceptance.replays import KnownReplay, judged_replay
from benchmarks.known_acceptance.texts import (
    TEXTS,
    Text,
    drawn,
    population,
    shortened,
)
from evict_profile.errors import ConfigError
from evict_profile.progress import progress_bar
from evict_profile.stats import Ints

PROMPTS = (8, 16, 32, 64)
CALIBRATED_ON, TREES = 300, 6
STUDIES = ("replay", "batch 4", "calibrate")


@command
def main(arguments: Sequence[str]) -> None:
    """Judge all studies of all texts, or those whose names hold a word."""
    parser = argparse.ArgumentParser(prog="known_acceptance", description=__doc__)
    parser.add_argument("--trials", type=count, default=100, help="of each text")
    parser.add_argument("--prompts", type=count, nargs="*", default=PROMPTS)
    parser.add_argument("--only", default="", help="studies whose names hold this")
    parser.add_argument("--text", default="", help="texts whose names hold this")
    parser.add_argument("--seed", type=int, default=0, help="of populations and draws")
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="JSON of every finding")
    asked = parser.parse_args(arguments)
    answer = Answer(asked.out, []) if asked.out else None
    jobs = [
        (study, text)
        for study in STUDIES
        for text in TEXTS
        if asked.only in study and asked.text in text.name
    ]
    if not jobs:
        names = "; ".join((", ".join(STUDIES), ", ".join(text.name for text in TEXTS)))
        raise ConfigError(f"--only, --text: nothing is called so; there are {names}")
    judge = partial(_findings, asked.trials, asked.prompts, asked.seed)
    rows: list[dict[str, Any]] = []
    with Pool(asked.jobs) as pool, progress_bar(Console(stderr=True)) as shown:
        for done, found in enumerate(pool.imap(judge, jobs), 1):
            rows.extend(found)
            text = jobs[done - 1][1].name
            shown.show(f"judged {text}", done, len(jobs) - done)
            if answer:
                answer.keep(rows)
    show(pd.DataFrame(rows))
    if answer:
        answer.write(rows)


def _findings(
    trials: int, prompts: Sequence[int], seed: int, job: tuple[str, Text]
) -> list[dict[str, Any]]:
    study, text = job
    find, size = _study(study, text, seed)
    rows = []
    for number in prompts:
        rng = np.random.default_rng((seed, number))
        of = {"study": study, "text": text.name, "prompts": number}
        for trial in range(trials):
            found = find(rng.integers(0, size, number))
            rows.extend(of | {"trial": trial} | asdict(each) for each in found)
    return rows


def _study(
    study: str, text: Text, seed: int
) -> tuple[Callable[[Ints], Iterator[Finding]], int]:
    """What finds in prompts that are drawn, and from how many."""
    if study == "calibrate":
        trace = shortened(population(text, CALIBRATED_ON, seed), TREES)
        union = true_activation(trace)

        def calibrated(chosen: Ints) -> Iterator[Finding]:
            part = drawn(trace, chosen)
            yield from judged_calibration(trace.nodes, part)
            yield from judged_activation(union, part)

        return calibrated, CALIBRATED_ON
    known = KnownReplay(text, 4 if study == "batch 4" else 1, seed)
    return partial(judged_replay, known), len(known.arrays.prompts)


def show(rows: pd.DataFrame) -> None:
    """One table a study: a line a number and text, a column a count of prompts."""
    for study, own in rows.groupby("study", sort=False):
        print(f"\n{study}: % inside, and half-width over what 95 % need")
        by = own.groupby(["what", "text", "prompts"], sort=False)
        table = by.apply(_share, include_groups=False).unstack()
        print(table.to_string())


def _share(own: pd.DataFrame) -> str:
    """Share inside and its error over trials: numbers of one trial err together."""
    by_trial = own.groupby("trial")["inside"].mean()
    error = (
        by_trial.std(ddof=1) / np.sqrt(len(by_trial)) if len(by_trial) > 1 else np.nan
    )
    share = f"{100.0 * by_trial.mean():.0f} +- {100.0 * error:.0f}"
    need = np.percentile(own["error"], 95)
    return share + (f"  {own['half_width'].mean() / need:.2f}" if need > 0.0 else "")


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
