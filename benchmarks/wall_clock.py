"""Does the replay tell the truth? Its prediction against the engine's own clock.

    python benchmarks/wall_clock.py worlds/stdlib TRACES --table TABLE --prompts 24

Every policy decodes the traced replies again with the real engine, in the order in
which the replay walked them. Policies take turns of a few steps, in an order drawn
anew each time, so that whatever the machine does, it does to all of them. What comes
out is tokens a second by CPU time (on a GPU, wall time) and by wall time, beside what
the replay says, and the same over plain decoding: ratios are what a replay is believed
for.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.command import amount, command, restart_as_runners_run
from benchmarks.turns import (
    Contender,
    Interval,
    Measured,
    answer_of,
    arguments,
    interval,
    open_trace,
    serve_all,
    workloads,
)
from evict_profile.replay.cell import Place
from evict_profile.replay.contest import Contest
from evict_profile.replay.ground import Ground
from evict_profile.replay.guided import guided
from evict_profile.replay.policies import AR, GUIDED, PAIR_LINKS, Fixed, MakePolicy
from evict_profile.replay.walk import Run, walk
from evict_profile.runtime import CostTable
from evict_profile.traces import Trace
from runners.tree_decoding.session import TraceSession


@dataclass(frozen=True)
class Row:
    """One policy, predicted and measured.

    Attributes:
        same_steps: whether the engine took the very steps of the replay; a policy that
            learns from a clock need not.
        predicted, measured: tokens a second of the batch; by `Moment.us`.
        measured_wall: by wall time.
        predicted_over_plain, measured_over_plain: over plain decoding.
        gap: the measured one over the predicted one. Where the engine took the very
            steps of the replay its interval is of time alone, step by step.
        parts: microseconds of a step, predicted and measured, by part.
        decision_us: CPU time of the policy in a step, which no price holds; the
            question whether to draft a level is timed with that level.
        verified, committed, levels: of a step of the batch, as measured.
    """

    policy: str
    same_steps: bool
    predicted: float
    measured: Interval
    measured_wall: Interval
    predicted_over_plain: float
    measured_over_plain: Interval
    gap: Interval
    parts: dict[str, tuple[float, float]]
    decision_us: float
    verified: float
    committed: float
    levels: float


def line_up(contest: Contest) -> dict[str, MakePolicy]:
    """Policies to check: fixed ones, the best of them by the replay, and the guided."""
    depth, nodes = contest.ground.depth, contest.ground.nodes
    points = contest.tune()
    best = max(points, key=lambda p: p.tokens_per_s)
    deepest = (point for point in points if point.depth == depth)
    width = max(deepest, key=lambda p: p.tokens_per_s).width
    settings = {
        AR: (0, 1),
        f"full tree, {nodes}": (depth, nodes + 1),
        "full tree, 32": (depth, 32),
        f"best fixed width ({width})": (depth, width),
        f"best fixed pair (depth {best.depth}, {best.width})": (best.depth, best.width),
    }
    fixed: dict[str, MakePolicy] = {
        name: lambda name=name, depth=d, width=w: Fixed(name, depth, width)
        for name, (d, w) in settings.items()
    }
    if contest.links:
        setting, make = contest.linked_pair()
        fixed[f"{PAIR_LINKS} ({setting})"] = make
    return fixed | dict(guided(contest.table, depth))


def check(
    session: TraceSession, part: Trace, table: CostTable, place: Place, prompts: int
) -> Iterator[Row]:
    """Predict and measure every policy in one place."""
    ground = Ground(part)
    contest = Contest(ground, table, place, 1)
    makers = line_up(contest)
    runs = {
        name: walk(ground, make(), contest.prices, place.batch, 0)
        for name, make in makers.items()
    }
    contenders = {
        name: Contender(make, len(runs[name].rows)) for name, make in makers.items()
    }
    print(f"{place}: {len(makers)} policies decode {ground.tokens} tokens", flush=True)
    measured = serve_all(session, part, contenders, prompts, place.batch)
    for name in makers:
        yield compare(name, runs, measured)


def compare(
    name: str, runs: Mapping[str, Run], measured: Mapping[str, Measured]
) -> Row:
    """One policy's prediction and its measurement."""
    run, own, plain = runs[name], measured[name], measured[AR]
    committed = own.columns["committed"]
    predicted = (1 + run.accepted).sum(axis=1)
    same_steps = np.array_equal(committed, predicted)
    plain_us = plain.columns["us"]
    over = own.tokens_per_s("us") / plain.tokens_per_s("us")
    slower = plain.ratio(plain_us, runs[AR].step_us, seed=1)
    faster = (
        own.ratio(run.step_us, own.columns["us"], seed=0)
        if same_steps
        else own.tokens_per_s("us") / run.tokens_per_s
    )
    names = ("verify_us", "draft_us", "fixed_us")
    means = zip(names, run.price.mean(axis=0), strict=False)
    return Row(
        policy=name,
        same_steps=same_steps,
        predicted=round(run.tokens_per_s, 1),
        measured=interval(own.tokens_per_s("us")),
        measured_wall=interval(own.tokens_per_s("wall_us")),
        predicted_over_plain=round(run.tokens_per_s / runs[AR].tokens_per_s, 4),
        measured_over_plain=interval(over),
        gap=interval(faster * slower),
        parts={n: (round(float(mean)), round(own.mean(n))) for n, mean in means},
        decision_us=round(own.decision_us),
        verified=round(own.mean("verified"), 2),
        committed=round(own.mean("committed"), 3),
        levels=round(own.mean("levels"), 2),
    )


def show(place: Place, rows: Sequence[Row]) -> None:
    """Print one place."""
    print(f"\n{place}")
    for row in rows:
        over, parts, gap = row.measured_over_plain, row.parts, row.gap
        us = " ".join(f"{n[:-3]} {p:.0f}/{m:.0f}" for n, (p, m) in parts.items())
        print(
            f"{row.policy:36} over plain {row.predicted_over_plain:.3f} predicted, "
            f"{over.value:.3f} ({over.low:.3f}..{over.high:.3f}) measured, "
            f"gap {gap.value:.3f} ({gap.low:.3f}..{gap.high:.3f}); "
            f"{row.measured.value:.0f} tokens/s of CPU time; us {us} "
            f"decision {row.decision_us:.0f}"
            f"{'' if row.same_steps else '; other steps'}",
            flush=True,
        )
    print(summary(rows))


def summary(rows: Sequence[Row]) -> str:
    """Whether the clock says what the replay says, in a sentence."""
    guided_rows = [row for row in rows if row.policy in GUIDED]
    fixed_rows = [row for row in rows if row.policy not in GUIDED]

    def best(some: Sequence[Row]) -> str:
        row = max(some, key=lambda row: row.measured_over_plain.value)
        over = row.measured_over_plain
        return (
            f"“{row.policy}” at {over.value:.2f} of plain decoding ({over.low:.2f} to "
            f"{over.high:.2f}; replayed {row.predicted_over_plain:.2f})"
        )

    return (
        f"By the engine's CPU time the best that adapts is {best(guided_rows)}, and "
        f"the best that does not {best(fixed_rows)}. What the replay does not price is "
        f"deciding, up to {max(r.decision_us for r in rows) / 1e3:.1f} ms a step here."
    )


def places(trace: Trace, asked: argparse.Namespace) -> Iterator[tuple[Trace, Place]]:
    """The parts of a trace that are checked."""
    for temperature in asked.temperature or trace.temperatures:
        for part, workload in workloads(trace, asked, temperature):
            for batch in asked.batch or [1]:
                yield part, Place(workload, temperature, batch)


@command
def main(words: Sequence[str]) -> None:
    """Check places of a trace; print them, and write all numbers as JSON."""
    parser = arguments(__doc__, "wall_clock.json")
    parser.add_argument("--temperature", type=amount, action="append")
    asked = parser.parse_args(words)
    answer, table = answer_of(asked), CostTable.load(asked.table)
    trace, session = open_trace(asked)
    found = []
    for part, place in list(places(trace, asked)):
        rows = list(check(session, part, table, place, asked.prompts))
        show(place, rows)
        found.append({"place": asdict(place), "rows": [asdict(row) for row in rows]})
        answer.keep(found)
    answer.write(found)


if __name__ == "__main__":
    restart_as_runners_run()
    sys.exit(main(sys.argv[1:]))
