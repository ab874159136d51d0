"""Does a small union live in the cache where one layer runs again and again?

    python benchmarks/l2_residency.py --model qwen3-30b-a3b --out l2.json

Between two runs of a layer a server passes the weights of all others through the last
cache, so a sweep times with a cold one. A profile that runs one layer in a loop does
not: experts that fit are read from the cache, and look cheaper than they are served.

One layer runs at one width, with every union of the sweep's grid there. Each sample
finds the cache as it was left by

*swept*: what comes before every sample of a sweep: on a GPU writes, on a CPU reads;
*read*: reads of what is none of the model's, behind that. A written line has to go
back to memory on the time of whoever needs its place, which read weights need not;
*self*: the same forward.

A round runs all of them in random order, with the same experts and tree for the three.
Told are medians, and swept and read over self, with 95 % intervals of the ratio within
rounds. `cache_union` experts have as many bytes as the cache, in which attention's
weights and the keys and values take room as well.
"""

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import Answer, at_least, command, open_session
from evict_profile.cells import Cell
from evict_profile.config import ModelSpec, load_model, load_sweep
from evict_profile.errors import ConfigError
from evict_profile.records import replace, to_mapping
from evict_profile.report.tables import Rows, print_rows
from evict_profile.stats import Estimate, median_interval
from evict_profile.sweep.checks import union_test_width
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.session import OpenRunner

RUNNER = "torch_moe"
LEFT_BY = ("swept", "read", "self")
MIN_ROUNDS = 6
"""Fewer give no 95 % interval of a median."""

Times = Mapping[tuple[Cell, str], Sequence[tuple[float, float]]]
"""(clock, reference) of every round, in microseconds."""


@dataclass(frozen=True)
class Row:
    """One union: medians in microseconds, and how much dearer a cold cache is."""

    union: int
    union_bytes: int
    swept_us: float
    read_us: float
    self_us: float
    swept_over_self: Estimate
    read_over_self: Estimate


@command
def main(words: Sequence[str]) -> None:
    """Measure, print and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--sweep", default="repeat", help="whose unions are taken")
    parser.add_argument("--rounds", type=at_least(MIN_ROUNDS), default=30)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(words)
    answer = Answer(asked.out, [Path(asked.model), Path(asked.sweep)])
    found, rows = measure(asked.model, asked.sweep, asked.rounds)
    answer.write(found | {"unions": [to_mapping(row) for row in rows]})
    show(found, rows)


def measure(
    model_name: str, sweep_name: str, rounds: int
) -> tuple[dict[str, Any], list[Row]]:
    """What was measured where, and a row for each union."""
    spec, model = load_sweep(sweep_name), load_model(model_name)
    if spec.runner != RUNNER:
        raise ConfigError(
            f"--sweep {spec.name}: its runner is {spec.runner}, which leaves the cache "
            f"as it is; give a sweep of the runner {RUNNER}"
        )
    # The fewest that the runner opens; the first of them runs.
    attention = model.attention
    layers = attention.sliding_every if attention.sliding_window else 1
    spec = replace(spec, layers=layers)
    cells = cells_at_one_width(make_grid(spec, model), model)
    with open_session(spec, model) as session:
        opened = session.opened
        times = in_rounds(session, cells, rounds)
    expert_bytes = opened["bytes_per_expert"]
    found = {
        "model": model.name,
        "device": session.facts["device"],
        "graph_mode": session.facts["graph_mode"],
        "width": cells[0].width,
        "context": cells[0].context,
        "rounds": rounds,
        "expert_bytes": expert_bytes,
        "cache_bytes": opened["cache_bytes"],
        "cache_union": round(opened["cache_bytes"] / expert_bytes, 2),
    }
    return found, [row_of(times, cell, expert_bytes) for cell in cells]


def cells_at_one_width(grid: Grid, model: ModelSpec) -> list[Cell]:
    """Every union of the grid at the width that fills all experts, or the largest."""
    width, context = union_test_width(grid, model), min(c.context for c in grid.cells)
    unions = {c.union for c in grid.cells if c.width == width and c.union}
    most = model.largest_union(width)
    return [
        Cell("layers", width, union, context, 1, "balanced")
        for union in sorted(unions)
        if union <= most
    ]


def in_rounds(session: OpenRunner, cells: Sequence[Cell], rounds: int) -> Times:
    """Every cell behind all that can be before it, in an order of its own a round."""
    visits = list(product(cells, LEFT_BY))
    times: dict[tuple[Cell, str], list[tuple[float, float]]] = {v: [] for v in visits}
    for number in range(rounds):
        random.Random(number).shuffle(visits)
        for cell, before in visits:
            asked = {"cell": to_mapping(cell), "seeds": [number], "layers": 1}
            ask = {"do": "measure", **asked, "before": before}
            (sample,) = session.runner.ask(ask)["samples"]
            reading = sample["clock_us"], sample["reference_us"]
            times[cell, before].append(reading)
    return times


def row_of(times: Times, cell: Cell, expert_bytes: int) -> Row:
    """What one union cost."""
    clock, reference = (
        {name: np.array(times[cell, name])[:, column] for name in LEFT_BY}
        for column in (0, 1)
    )

    def over_self(name: str) -> Estimate:
        # A GPU's clock needs no reference, and has NaN there.
        speed = np.nan_to_num(reference["self"] / reference[name], nan=1.0)
        found = median_interval(clock[name] / clock["self"] * speed)
        return Estimate(*(round(v, 4) for v in (found.median, found.low, found.high)))

    medians = {f"{n}_us": round(float(np.median(clock[n])), 2) for n in LEFT_BY}
    return Row(
        cell.union,
        cell.union * expert_bytes,
        **medians,
        swept_over_self=over_self("swept"),
        read_over_self=over_self("read"),
    )


def show(found: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Print the cache's size, and a row for each union."""
    columns: dict[str, Callable[[Row], object]] = {
        "U": lambda row: row.union,
        "MB": lambda row: f"{row.union_bytes / 1e6:.1f}",
        "behind itself, us": lambda row: f"{row.self_us:.1f}",
        "swept over that": lambda row: row.swept_over_self,
        "read over that": lambda row: row.read_over_self,
    }
    title = (
        f"{found['model']} on {found['device']}, one layer, n={found['width']}: the "
        f"cache has {found['cache_bytes'] / 1e6:.1f} MB, as many as "
        f"{found['cache_union']:g} experts"
    )
    print_rows(Console(), Rows.of(rows, columns), title)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
