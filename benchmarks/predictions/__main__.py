"""Predictions of public runs that are announced and not posted; scored when they are.

    python -m benchmarks.predictions write --from WHEEL
    python -m benchmarks.predictions score RUNS.csv

A file holds ratios of a step over plain decoding's, with 95 % intervals, of every
setting that its announcement names. `SHA256SUMS` holds the hash of each file. A score
refuses a file that was changed after it was hashed. RUNS.csv has the columns `model`,
`batch`, `width`, `levels`, `topk` and `measured`, the step over plain decoding's.
"""

import argparse
import datetime
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import command
from benchmarks.served.record import deployments
from benchmarks.served.rivals import one_parameter
from evict_profile.config.load import load_model
from evict_profile.errors import DataError, EvictProfileError
from evict_profile.sources.asked import deployment_of
from evict_profile.sources.estimate import estimated_table
from evict_profile.stats import Floats
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import Drafter

HOME = Path(__file__).parent
SUMS = "SHA256SUMS"
CONTEXT = 1024.0
"""Tokens in a cache half-way through a reply; no announcement says."""

KEY = ["model", "batch", "width", "levels", "topk"]


@dataclass(frozen=True)
class Announcement:
    """Runs that somebody said they would post.

    `settings` are (verified tokens, drafted levels, branches of a level), of an EAGLE-3
    head. Prompt look-up (n-grams) drafts no level.
    """

    name: str
    source: str
    gpu: str
    engine: str
    models: tuple[tuple[str, int], ...]
    batches: tuple[int, ...]
    settings: tuple[tuple[int, int, int], ...]


ANNOUNCED = (
    Announcement(
        "vllm-46295",
        "https://github.com/vllm-project/vllm/issues/46295, comment of 2026-09-22: one "
        "H200, a MoE model that is not named, n-grams, K in 0, 1, 2, 4, 8",
        "h200_sxm",
        "vllm",
        tuple(
            (name, 1)
            for name in (
                "qwen3-30b-a3b",
                "qwen3.5-35b-a3b",
                "gpt-oss-120b",
                "gpt-oss-20b",
                "olmoe-1b-7b",
                "mixtral-8x7b",
                "gemma-4-26b-a4b",
            )
        ),
        (1, 4, 16, 64),
        ((2, 0, 1), (3, 0, 1), (5, 0, 1), (9, 0, 1)),
    ),
    Announcement(
        "specbundle-2",
        "https://github.com/sgl-project/SpecForge/issues/374: phase 2 of SpecBundle; "
        "settings, GPU and requests at once as in phase 1; TP of its drafters' cards",
        "h200_sxm",
        "sglang",
        (
            ("qwen3-30b-a3b", 4),
            ("qwen3-235b-a22b", 8),
            ("qwen3-next-80b-a3b", 4),
            ("kimi-k2", 8),
            ("gpt-oss-120b", 4),
            ("deepseek-v3", 8),
        ),
        (8,),
        ((4, 3, 1), (6, 5, 1), (8, 7, 1), (6, 5, 3), (8, 7, 4)),
    ),
)


def write(wheel: Path, today: str) -> int:
    """Write each announcement's predictions, and the hash of each file."""
    for each in ANNOUNCED:
        path = HOME / f"{today}-{each.name}.csv"
        frames = [
            frame for name, tp in each.models for frame in _of(each, name, tp, wheel)
        ]
        text = f"# {each.source}\n" + pd.concat(frames).to_csv(index=False)
        path.write_text(text)
        with (HOME / SUMS).open("a") as sums:
            sums.write(f"{_sha256(path)}  {path.name}\n")
        print(f"{path.name}: {sum(map(len, frames))} predictions")
    return 0


def _of(each: Announcement, name: str, tp: int, wheel: Path) -> Iterator[pd.DataFrame]:
    """One model's rows; a model without a table is named on stderr."""
    try:
        table = _table(each, name, tp, wheel)
    except EvictProfileError as error:
        print(f"{name}: not predicted, {error}", file=sys.stderr)
        return
    rows = [
        (*_setting(table, name, batch, *setting), table.key.dtype, table.sha256)
        for batch in each.batches
        for setting in each.settings
    ]
    columns = [*KEY, "ratio", "low", "high", "union", "dtype", "table_sha256"]
    yield pd.DataFrame(rows, columns=columns)


def _table(each: Announcement, name: str, tp: int, wheel: Path) -> CostTable:
    model = load_model(name)
    asked = deployment_of(model, each.gpu, each.engine, None, tp)
    return estimated_table(model, asked, wheel, lambda _: None)


def _setting(
    table: CostTable, name: str, batch: int, width: int, levels: int, topk: int
) -> tuple[str | int | float, ...]:
    served = ServedStep.of(table, topk=topk, drafter=Drafter())
    found = served.ratio(batch, width, levels, CONTEXT)
    union = float(served.table.activation.at(np.array([batch * width]), batch)[0])
    numbers = (round(x, 3) for x in (found.value, found.low, found.high))
    return (name, batch, width, levels, topk, *numbers, round(union, 1))


def score(runs: Path) -> int:
    """Print the error and coverage of each file, beside the simplest rivals."""
    predicted, measured = known(), pd.read_csv(runs, comment="#")
    if missing := {*KEY, "measured"} - set(measured.columns):
        raise DataError(f"{runs}: lacks the columns {sorted(missing)}; add them")
    for path in predicted:
        both = pd.read_csv(path, comment="#").merge(measured, on=KEY)
        print(f"{path.name}: {len(both)} of its settings were measured")
        if len(both):
            print(scores(both).to_string())
    return 0


def known() -> list[Path]:
    """Files of predictions, each equal to its hash."""
    found = []
    for line in (HOME / SUMS).read_text().splitlines():
        own, name = line.split()
        if _sha256(HOME / name) != own:
            raise DataError(f"{name}: was changed after it was hashed; restore it")
        found.append(HOME / name)
    return found


def scores(both: pd.DataFrame) -> pd.DataFrame:
    """Median and p90 of |ln(predicted / measured)| in per cent, and coverage."""
    measured = both["measured"].to_numpy(float)
    inside = (both["low"] <= measured) & (measured <= both["high"])

    def errors(predicted: Floats) -> Floats:
        off: Floats = 100.0 * np.abs(np.log(predicted / measured))
        return off

    beyond = both["width"].to_numpy(float) - 1.0
    found = {
        "predicted": errors(both["ratio"].to_numpy(float)),
        "1 + c (n - 1), c of the record": errors(1.0 + _record_slope() * beyond),
        "one ratio, in hindsight": errors(np.full(len(both), np.median(measured))),
    }
    rows = {n: (np.median(off), np.quantile(off, 0.9)) for n, off in found.items()}
    table = pd.DataFrame.from_dict(rows, "index", columns=["median", "p90"]).round(1)
    table.loc["predicted", "inside 95 %"] = round(100.0 * float(inside.mean()), 1)
    return table


@cache
def _record_slope() -> float:
    """c of the other runs in `benchmarks.served`."""
    return one_parameter(deployments())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@command
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.predictions", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    writing = steps.add_parser("write")
    writing.add_argument("--from", dest="wheel", type=Path, required=True)
    steps.add_parser("score").add_argument("runs", type=Path)
    asked = parser.parse_args(arguments)
    if asked.step == "score":
        return score(asked.runs)
    return write(asked.wheel, datetime.datetime.now(tz=datetime.UTC).date().isoformat())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
