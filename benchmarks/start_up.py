"""How wrong a profile is that a server takes of itself at start, with dummy tokens.

    python benchmarks/start_up.py RUN --out start_up.json

Such a profile sends the same token everywhere, so each layer wakes top-k experts
whatever the width. In the samples of a sweep both are there: cells in which exactly
top-k experts were forced, and cells of the same width, context and batch that the
router filled itself. What the first costs over what the second costs, less one, is the
error; a rule that trusts such a profile believes wide trees nearly free.

Natural cells are those of the sweep's weights, and the union that they woke is given
beside the error: it grows with dummy weights otherwise than with trained ones.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import Answer, command
from evict_profile.cells import OK, Cell, cells_of
from evict_profile.errors import ConfigError
from evict_profile.stats import median_interval
from evict_profile.sweep.store import Store, history


@dataclass(frozen=True)
class Compared:
    """One seat of the sweep.

    Attributes:
        union: mean experts that a layer woke when the router chose.
        natural_us, same_us: with the router's choice, and with top-k experts.
        error: relative, negative where the dummy profile is too low.
    """

    width: int
    context: int
    batch: int
    union: float
    natural_us: float
    same_us: float
    error: float


@command
def main(arguments: Sequence[str]) -> None:
    """Print and write the errors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of an evict-profile sweep")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    store = Store(asked.run)
    answer = Answer(asked.out, [asked.run, store.parts])
    cells = list(compare(store))
    if not cells:
        top_k = store.header().model.moe.top_k
        raise ConfigError(
            f"{asked.run}: no seat was measured both with natural routing and with "
            f"{top_k} experts; give a run whose sweep has 'natural: true' and U={top_k}"
        )
    found = {
        "cells": [asdict(cell) for cell in cells],
        "by_width": by(cells, "width"),
        "by_batch": by(cells, "batch"),
    }
    answer.write(found)
    print(json.dumps({key: found[key] for key in ("by_width", "by_batch")}))


def compare(store: Store) -> Iterator[Compared]:
    """Every seat that was measured both ways."""
    frame, top_k = store.frame(), store.header().model.moe.top_k
    median_us = {
        cell: median_interval(times).median
        for cell, times in history(frame).items()
        if times
    }
    timed = frame[frame["status"] == OK]
    woken: dict[Cell, list[float]] = {}
    for cell, union in zip(cells_of(timed), timed["observed_union"], strict=True):
        woken.setdefault(cell, []).append(union)
    for natural, natural_us in sorted(median_us.items()):
        seat = (natural.width, natural.context, natural.batch)
        same = Cell("layers", natural.width, top_k, *seat[1:], "balanced")
        if (natural.part, natural.split) != ("layers", "natural"):
            continue
        if same in median_us:
            error = median_us[same] / natural_us - 1.0
            union = statistics.mean(woken[natural])
            yield Compared(*seat, union, natural_us, median_us[same], error)


def by(cells: Sequence[Compared], axis: str) -> dict[int, dict[str, float]]:
    """Median and largest error, and the union, along an axis."""
    found = {}
    for value in sorted({getattr(cell, axis) for cell in cells}):
        those = [cell for cell in cells if getattr(cell, axis) == value]
        errors: list[float] = [cell.error for cell in those]
        found[value] = {
            "median_error": round(statistics.median(errors), 4),
            "largest_error": round(largest(errors), 4),
            "median_union": round(statistics.median(c.union for c in those), 1),
            "cells": len(those),
        }
    return found


def largest(errors: Sequence[float]) -> float:
    """The error farthest from none, with its sign."""
    low, high = min(errors), max(errors)
    return low if -low > high else high


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
