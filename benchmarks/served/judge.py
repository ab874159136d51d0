"""What `ServedTable` answers for runs that it was not shown.

A table is made of a plain run and one or two K of a group, or of two batches of one K,
and is asked for what else the server ran. Frames have `server`, `group`, `width`,
`accepted`, `ratio` (as served), and `value`, `low` and `high` (as answered).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.served.fits import far_batches, known_and_asked, neighbours
from evict_profile.served.growth import unserved
from evict_profile.served.run import Run
from evict_profile.served.table import ServedTable
from evict_profile.stats import Estimate, Floats
from evict_profile.table.key import Key

KEY = Key("gpu", "model", "", 1, 1, "engine", "", "", "", "")
Row = Mapping[Any, Any]


def without_runs(rows: pd.DataFrame) -> pd.DataFrame:
    answers = [unserved(int(width)).value for width in rows["width"]]
    return _answered(rows.to_dict("records"), answers)


def with_known(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Each chain of a group, by a plain run and so many others of its chains."""
    return _asked(known_and_asked(rows, count))


def between_batches() -> pd.DataFrame:
    """The batch between two served ones, each with a plain run and one K."""
    return _asked(neighbours())


def plain_alone() -> pd.DataFrame:
    """A batch with a plain run, beside another with a plain run and the same K."""
    return _asked(far_batches(), plain=True)


def _asked(
    questions: Iterable[tuple[Sequence[Row], Row]], plain: bool = False
) -> pd.DataFrame:
    rows, answers = list[Row](), list[Estimate]()
    for known, asked in questions:
        runs = {run.source: run for row in known for run in _runs(row)}
        if plain:
            run = next(_runs(asked))
            runs[run.source] = run
        table = ServedTable(key=KEY, version="1.0.0", runs=tuple(runs.values()))
        width = int(asked["width"])
        answers.append(table.ratio(int(asked["batch"]), width, width - 1).value)
        rows.append(asked)
    return _answered(rows, answers)


def _runs(row: Row) -> Iterator[Run]:
    """The plain and the drafting run, in plain steps of 10 ms: levels cancel."""
    for width, ratio in ((1, 1.0), (int(row["width"]), row["ratio"])):
        drafts, batch = width - 1, int(row["batch"])
        yield Run(
            source=f"{width} tokens at batch {batch}",
            batch=batch,
            drafts=drafts,
            levels=drafts,
            topk=1,
            width=width,
            step_us=10_000.0 * ratio,
        )


def _answered(rows: Sequence[Row], answers: list[Estimate]) -> pd.DataFrame:
    names = ("value", "low", "high")
    ends = {name: [getattr(each, name) for each in answers] for name in names}
    return pd.DataFrame(rows).assign(**ends)


def errors(rows: pd.DataFrame, column: str) -> Floats:
    """Sizes of log errors of a ratio, float64 [rows]."""
    return np.abs(np.log((rows[column] / rows["ratio"]).to_numpy(float)))


def coverage(rows: pd.DataFrame) -> dict[str, float]:
    """How answers hold; `settled` and `surely wrong` where a length was stated.

    An answer is settled if the speed-up's interval excludes 1.
    """
    inside = rows["ratio"].between(rows["low"], rows["high"])
    told = rows.dropna(subset="accepted")
    above, below = (told["accepted"] > told["high"], told["accepted"] < told["low"])
    gains = told["accepted"] > told["ratio"]
    return {
        "answers": len(rows),
        "inside 95 %": 100.0 * float(inside.mean()),
        "inside, servers once": 100 * inside.groupby(rows["server"]).mean().mean(),
        "high over low": float((rows["high"] / rows["low"]).median()),
        "settled": 100.0 * float((above | below).mean()),
        "surely wrong": float(((above & ~gains) | (below & gains)).sum()),
    }


def by_server(rows: pd.DataFrame) -> pd.DataFrame:
    """Median error of each server that nobody ran, and how many rows are inside."""
    answers = without_runs(rows)
    off = pd.Series(100.0 * errors(answers, "value"))
    inside = answers["ratio"].between(answers["low"], answers["high"])
    found = off.groupby(answers["server"]).agg(["size", "median"]).round(1)
    return found.assign(inside=inside.groupby(answers["server"]).sum())


def loss(rows: pd.DataFrame, column: str) -> float:
    """Speed lost by the draft with the best prediction, or none; each server once.

    Groups of one draft leave no choice of K.
    """
    lost: dict[str, list[float]] = {}
    for _, own in rows.groupby("group"):
        if len(own) > 1:
            speed, told = (own["accepted"] / own[at] for at in ("ratio", column))
            taken = speed[told.idxmax()] if told.max() > 1.0 else 1.0
            server = str(own["server"].iloc[0])
            lost.setdefault(server, []).append(1.0 - taken / max(speed.max(), 1.0))
    return 100.0 * float(np.mean([np.mean(each) for each in lost.values()]))
