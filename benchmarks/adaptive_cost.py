"""What does a cost model cost? The adaptive plan against the full grid.

Replays the adaptive plan on the samples of a finished full-grid run: each sample it
asks for is the next recorded one of that cell, so that both plans see the same
machine. After each choice the fit is judged on the full grid's medians of the cells
the plan has not measured. Printed: samples taken when that error, averaged with the
next two choices, first reaches the full grid's own held-out error. Naturally routed
cells, which no fit uses, count in neither plan.

    python benchmarks/adaptive_cost.py runs/qwen3-30b-a3b/demo
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.command import command
from evict_profile.cells import Cell
from evict_profile.fit.fitted import Fitted, fit_run, fit_uncertainty
from evict_profile.fit.hinge import fit_cost, points_of
from evict_profile.stats import ErrorSummary, summarise_errors
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.plan import AdaptivePlan, round_order
from evict_profile.sweep.store import Store

NEVER = 0.0


def replay(fitted: Fitted) -> Iterator[tuple[int, ErrorSummary]]:
    """Samples taken and error on unmeasured cells, after each finished choice."""
    header = fitted.header
    spec = header.sweep
    grid = make_grid(spec, header.model)
    uncertainty = fit_uncertainty(header.model, fitted.cost.measured_layers)
    goal = replace(spec.adaptive, held_out_median=NEVER, held_out_p90=NEVER)
    plan = AdaptivePlan(grid, spec.stop, goal, uncertainty)
    recorded, seen = fitted.latencies, {}
    number, taken = 0, 0
    while cells := plan.open_cells(seen):
        if seen and not any(cell in seen for cell in cells):
            yield taken, error_elsewhere(fitted, seen)
        number += 1
        for cell in round_order(cells, grid.anchor, spec.seed, number):
            used = seen.setdefault(cell, [])
            taken += 1
            if len(used) < len(recorded[cell]):
                used.append(recorded[cell][len(used)])
            elif cell != grid.anchor:
                return


def error_elsewhere(fitted: Fitted, seen: dict[Cell, list[float]]) -> ErrorSummary:
    """Error on the full grid's cells that the plan has not measured."""
    model, layers = fitted.header.model, fitted.cost.measured_layers
    cost = fit_cost(points_of(seen), model, layers)
    cells = [i for i, c in enumerate(fitted.layer_points.cells) if c not in seen]
    rest = fitted.layer_points.take(cells)
    return summarise_errors(cost.layers_us(rest.cells), rest.latency_us)


def reach(curve: list[tuple[int, float]], goal: float) -> int | None:
    """Samples at which the mean of three errors in a row is first at the goal."""
    for start in range(len(curve) - 2):
        errors = [error for _, error in curve[start : start + 3]]
        if sum(errors) / 3 <= goal:
            return curve[start][0]
    return None


@command
def main(words: Sequence[str]) -> None:
    """Replay and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    fitted = fit_run(Store(parser.parse_args(words).run))
    full = fitted.held_out["ours"].error
    useful = {c: v for c, v in fitted.latencies.items() if c.union or c.part == "ends"}
    total = sum(len(values) for values in useful.values())
    curve = list(replay(fitted))
    reached = {
        name: reach([(n, getattr(e, name)) for n, e in curve], getattr(full, name))
        for name in ("median", "p90")
    }
    print(
        json.dumps(
            {
                "full_grid": {"samples": total, "held_out": asdict(full)},
                "adaptive_samples_to_reach": reached,
                "share_of_samples": {
                    name: n and round(n / total, 3) for name, n in reached.items()
                },
                "curve": [
                    [n, round(e.median, 4), round(e.p90, 4), e.cells] for n, e in curve
                ],
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
