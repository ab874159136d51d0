"""Judge what replay and calibration say of their own error, where acceptance is known.

    python -m benchmarks.known_acceptance --trials 100 --out acceptance.json

A trial draws prompts with replacement from a population that is known, so the truth of
a mean is the population's own. The commands' code replays, calibrates and judges them.
Prints the share of truths inside the stated 95 % intervals with its standard error over
trials, the stated half-width over the one that would hold 95 % of the errors, and how
often a verdict is sure to adapt, and wrongly: the fixed setting that it names is as
fast. "Of ties" all adaptive policies are made as fast as the best fixed setting, which
a verdict on few prompts may not name. Exit code 1 where a study holds fewer truths than
`LEAST`, or verdicts are wrong more often than `MOST_WRONG`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import Answer, command, count, restart_on_one_thread
from benchmarks.known_acceptance.populations import TEXTS, drawn, population
from benchmarks.known_acceptance.replays import (
    SURE,
    WRONG,
    Judged,
    KnownReplay,
    finding,
    judged_replay,
)
from evict_profile.calibrate.acceptance import RAW
from evict_profile.calibrate.activation import measure_activation
from evict_profile.calibrate.study import calibrate
from evict_profile.stats import Ints

LEAST, MOST_WRONG = 0.85, 0.05
"""Of all truths of a study, 0.93 to 0.96 were inside; 0.02 of verdicts were wrong."""

PROMPTS = (8, 16, 32, 64)
STUDIES = ("replay", "batch 4", "calibrate")
POPULATIONS = {"replay": 120, "batch 4": 120, "calibrate": 300}
CALIBRATED_STEPS, TRUE_DRAWS = 6, 10
ACTIVATED = {1: (4, 12), 4: (16, 48)}
"""Tokens at which experts are judged, by batch."""

JUDGED = ("what", "inside", "error", "half_width")


class KnownCalibration:
    """The first steps of a population's replies, and the experts that they activate."""

    def __init__(self, text: str, prompts: int, seed: int) -> None:
        trace = population(text, prompts, seed)
        self.trace = trace.take(np.flatnonzero(trace.position < CALIBRATED_STEPS))
        draws = [measure_activation(self.trace, seed) for seed in range(TRUE_DRAWS)]
        self.unions = {
            batch: np.mean([each[batch].union for each in draws if each], axis=0)
            for batch in ACTIVATED
        }

    def judged(self, chosen: Ints) -> Iterator[Judged]:
        """What a calibration prints: Brier scores against its curves' on all prompts,
        and experts by tokens."""
        part, known = drawn(self.trace, chosen), self.trace.nodes
        found = calibrate(part)
        true = {
            name: float(np.mean((curve(known) - known.accepted) ** 2))
            for name, curve in (("raw", RAW), (found.chosen, found.curves))
        }
        for name, truth in true.items():
            kind = "raw" if name == "raw" else "calibrated"
            yield finding(f"Brier, {kind}", found.errors[name].brier, truth)
        if len(true) > 1:
            excess = true["raw"] - true[found.chosen]
            yield finding("Brier over", found.errors["raw"].excess_brier, excess)
        activation = measure_activation(part)
        assert activation, "populations have routes"
        for batch, union in self.unions.items():
            for tokens in ACTIVATED[batch]:
                stated = activation[batch].at(tokens)
                yield finding(f"U(t), batch {batch}", stated, union[tokens])


def findings(
    trials: int, prompts: Sequence[int], seed: int, job: tuple[str, str]
) -> list[dict[str, Any]]:
    """Every finding of every trial of one study of one text."""
    name, text = job
    size = POPULATIONS[name]
    if name == "calibrate":
        find = KnownCalibration(text, size, seed).judged
    else:
        known = KnownReplay(text, 4 if name == "batch 4" else 1, size, seed)
        find = partial(judged_replay, known)
    rows = []
    for number in prompts:
        rng = np.random.default_rng((seed, number))
        for trial in range(trials):
            place = {"study": name, "text": text, "prompts": number, "trial": trial}
            found = find(rng.integers(0, size, number))
            rows += [place | dict(zip(JUDGED, each, strict=True)) for each in found]
    return rows


@command
def main(arguments: Sequence[str]) -> int:
    """Judge all studies of all texts, or one; 1 where intervals hold too little."""
    parser = argparse.ArgumentParser(prog="known_acceptance", description=__doc__)
    parser.add_argument("--trials", type=count, default=100, help="of each text")
    parser.add_argument("--prompts", type=count, nargs="*", default=PROMPTS)
    parser.add_argument("--only", choices=STUDIES)
    parser.add_argument("--seed", type=int, default=0, help="of populations and draws")
    parser.add_argument("--out", type=Path, default=Path("acceptance.json"))
    asked = parser.parse_args(arguments)
    answer = Answer(asked.out, [])
    studies = [asked.only] if asked.only else STUDIES
    jobs = [(study, text) for study in studies for text in TEXTS]
    judge = partial(findings, asked.trials, asked.prompts, asked.seed)
    rows: list[dict[str, Any]] = []
    with Pool() as pool:
        for job, found in zip(jobs, pool.imap(judge, jobs), strict=True):
            rows.extend(found)
            answer.keep(rows)
            print(", ".join(job), file=sys.stderr)
    answer.write(rows)
    found = pd.DataFrame(rows)
    show(found)
    return int(misses(found))


def misses(rows: pd.DataFrame) -> bool:
    """Whether a study's intervals hold too little, or its verdicts are wrong."""
    wrong = rows["what"].str.startswith(WRONG)
    stated = rows[~wrong & ~rows["what"].str.startswith(SURE)]
    held = stated.groupby("study")["inside"].mean()
    return bool((held < LEAST).any() or rows[wrong]["inside"].mean() > MOST_WRONG)


def show(rows: pd.DataFrame) -> None:
    """One table a study: a line a number and text, a column a count of prompts."""
    for study_name, own in rows.groupby("study", sort=False):
        print(f"\n{study_name}: % inside, and half-width over what 95 % need")
        by = own.groupby(["what", "text", "prompts"], sort=False)
        print(by.apply(_share, include_groups=False).unstack().to_string())


def _share(own: pd.DataFrame) -> str:
    """Share inside and its error over trials: numbers of one trial err together."""
    by_trial = 100.0 * own.groupby("trial")["inside"].mean()
    share = f"{by_trial.mean():.0f} +- {by_trial.sem():.0f}"
    need = own["error"].quantile(0.95)
    return share + (f"  {own['half_width'].mean() / need:.2f}" if need > 0.0 else "")


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
