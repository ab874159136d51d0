"""Does the replay tell the truth? Its prediction against the engine's own clock.

    python benchmarks/wall_clock.py worlds/stdlib TRACES --table TABLE --prompts 24

Every policy decodes the traced replies again with the real engine, in the order in
which the replay walked them. Policies take turns of a few steps, in an order drawn
anew each time, so that whatever the machine does, it does to all of them. What comes
out is tokens a second by CPU time and by wall time, beside what the replay says, and
the same over plain decoding: ratios are what a replay is believed for.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evict_profile.replay.contest import Contest, Place
from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import AR, RATE, RATE_DEPTH, Fixed, MakePolicy, guided
from evict_profile.replay.prices import Prices
from evict_profile.replay.walk import Run, reply_order, walk
from evict_profile.runtime import CostTable
from evict_profile.sweep.client import QUIET_CPU
from evict_profile.traces import Reply, Trace, load_traces
from runners.tree_decoding.serving import Served, Serving
from runners.tree_decoding.session import TraceSession

TURN = 8
"""Steps of a policy before the next has its turn."""
LEARNING = {RATE, RATE_DEPTH}
RESAMPLES = 2000


@dataclass
class Measured:
    """What one policy did on the real clock."""

    served: list[Served] = field(default_factory=list)

    def column(self, name: str) -> np.ndarray:
        """One number a step."""
        parts = {
            "tokens": lambda s: sum(s.counted),
            "cpu_us": lambda s: s.step.times.step.cpu_us,
            "wall_us": lambda s: s.step.times.step.wall_us,
            "verify_us": lambda s: s.step.times.verify.cpu_us,
            "draft_us": lambda s: sum(t.cpu_us for t in s.step.times.levels),
            "fixed_us": lambda s: s.step.times.fixed.cpu_us,
            "verified": lambda s: sum(1 + t.token.shape[1] for t in s.step.trees),
            "committed": lambda s: sum(s.step.committed),
            "levels": lambda s: s.step.levels,
        }
        return np.array([parts[name](served) for served in self.served], dtype=float)


def serve_all(
    session: TraceSession,
    ground: Ground,
    makers: Mapping[str, MakePolicy],
    prompts: int,
    batch: int,
    seed: int,
) -> dict[str, Measured]:
    """Decode the trace's replies under every policy, in turns."""
    jobs = [session.job(ask_of(reply, prompts)) for reply in ground.trace.replies]
    tokens = max(job.tokens for job in jobs)
    at_work = {
        name: Serving(
            session.engine(batch, tokens),
            make(),
            jobs,
            reply_order(len(jobs), seed),
            batch,
        )
        for name, make in makers.items()
    }
    measured = {name: Measured() for name in makers}
    rng = np.random.default_rng(seed)
    while busy := [name for name, serving in at_work.items() if not serving.ended]:
        for name in rng.permutation(busy):
            for _ in range(TURN):
                if not at_work[name].ended:
                    measured[name].served.append(at_work[name].serve())
    return measured


def ask_of(reply: Reply, prompts: int) -> dict[str, object]:
    """The request that had this reply traced."""
    return {
        "workload": reply.workload,
        "prompt": reply.prompt,
        "prompts": prompts,
        "seed": reply.seed,
        "temperature": reply.temperature,
        "tokens": reply.tokens,
    }


def compare(name: str, measured: Measured, run: Run, plain: Measured, plain_run: Run) -> dict:
    """One policy: measured and predicted, and the same over plain decoding."""
    same = len(measured.served) == len(run.rows) and bool(
        (measured.column("committed") == (1 + run.accepted).sum(axis=1)).all()
    )
    rate = speed(measured, "cpu_us")
    plain_rate = speed(plain, "cpu_us")
    predicted, plain_predicted = run.tokens_per_s, plain_run.tokens_per_s
    return {
        "policy": name,
        "same steps": same,
        "steps": [len(run.rows), len(measured.served)],
        "tokens_per_s": [round(predicted, 1), interval(measured, "cpu_us")],
        "wall_tokens_per_s": interval(measured, "wall_us"),
        "over_plain": [
            round(predicted / plain_predicted, 3),
            ratio_interval(measured, plain),
        ],
        "measured/predicted": round(rate / predicted, 3),
        "gap of ratio": round(
            (rate / plain_rate) / (predicted / plain_predicted) - 1.0, 4
        ),
        **{
            part: [
                round(float(run.price[:, column].mean())),
                round(float(measured.column(part).mean())),
            ]
            for column, part in enumerate(("verify_us", "draft_us", "fixed_us"))
        },
        "verified": [
            round(float(run.verified.sum(axis=1).mean()), 2),
            round(float(measured.column("verified").mean()), 2),
        ],
    }


def speed(measured: Measured, clock: str) -> float:
    """Tokens a second."""
    return 1e6 * float(measured.column("tokens").sum() / measured.column(clock).sum())


def resampled(measured: Measured, clock: str) -> np.ndarray:
    """Tokens a second in resamples of turns: steps near in time share the machine."""
    rng = np.random.default_rng(0)
    tokens, us = measured.column("tokens"), measured.column(clock)
    ends = np.arange(0, len(tokens), TURN)
    sums = np.stack([np.add.reduceat(x, ends) for x in (tokens, us)], axis=1)
    drawn = rng.integers(0, len(sums), (RESAMPLES, len(sums)))
    whole = sums[drawn].sum(axis=1)
    return 1e6 * whole[:, 0] / whole[:, 1]


def interval(measured: Measured, clock: str) -> list[float]:
    """Tokens a second with a 95 % interval: value, low, high."""
    spread = np.percentile(resampled(measured, clock), [2.5, 97.5])
    return [round(float(x), 1) for x in (speed(measured, clock), *spread)]


def ratio_interval(measured: Measured, plain: Measured) -> list[float]:
    """Throughput over plain decoding with a 95 % interval."""
    both = resampled(measured, "cpu_us") / resampled(plain, "cpu_us")[::-1]
    value = speed(measured, "cpu_us") / speed(plain, "cpu_us")
    return [round(float(x), 3) for x in (value, *np.percentile(both, [2.5, 97.5]))]


def line_up(contest: Contest, depth: int, nodes: int) -> dict[str, MakePolicy]:
    """Policies to check: fixed ones known beforehand, the tuned, and the guided."""
    points = contest.tune()
    best = max(points, key=lambda p: p.tokens_per_s)
    deepest = max(
        (p for p in points if p.depth == depth), key=lambda p: p.tokens_per_s
    )
    settings = {
        AR: (0, 1),
        "full tree 60": (depth, nodes + 1),
        "full tree 32": (depth, 32),
        f"best width ({deepest.width})": (depth, deepest.width),
        f"best pair (depth {best.depth}, {best.width})": (best.depth, best.width),
    }
    fixed = {
        name: lambda name=name, d=d, w=w: Fixed(name, d, w)
        for name, (d, w) in settings.items()
    }
    return fixed | dict(guided(contest.table, depth))


def check(
    session: TraceSession, part: Trace, table: CostTable, place: Place, prompts: int
) -> list[dict]:
    """Predict and measure every policy in one place."""
    ground = Ground(part)
    contest = Contest(ground, table, place, 1)
    makers = line_up(contest, ground.depth, ground.nodes)
    prices = Prices(table, ground, place.batch)
    runs = {name: walk(ground, make(), prices, place.batch, 0) for name, make in makers.items()}
    measured = serve_all(session, ground, makers, prompts, place.batch, 0)
    return [
        compare(name, measured[name], runs[name], measured[AR], runs[AR])
        for name in makers
    ]


def main(arguments: Sequence[str]) -> None:
    """Check every place of a trace and print what was found, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("world", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--out", type=Path, default=Path("wall_clock.json"))
    asked = parser.parse_args(arguments)
    trace, table = load_traces(asked.traces), CostTable.load(asked.table)
    about = trace.about
    options = {"depth": about.depth, "fan": about.fan, "nodes": about.nodes, "prompt_tokens": 128}
    session = TraceSession(str(asked.world), options)
    found = []
    for temperature in asked.temperature or trace.temperatures:
        for workload in asked.workload or [*trace.workloads, "mixed"]:
            part = trace.only(
                None if workload == "mixed" else workload, temperature
            )
            for batch in asked.batch or [1]:
                place = Place(workload, temperature, batch)
                print(place, flush=True)
                rows = check(session, part, table, place, asked.prompts)
                for row in rows:
                    print(json.dumps(row), flush=True)
                found.append({"place": str(place), "policies": rows})
                asked.out.write_text(json.dumps(found, indent=1))


def restart_on_one_thread() -> None:
    """Run the same command as runners are run: one thread, which sleeps when it waits."""
    if any(os.environ.get(name) != value for name, value in QUIET_CPU.items()):
        environment = os.environ | QUIET_CPU
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)  # noqa: S606


if __name__ == "__main__":
    restart_on_one_thread()
    main(sys.argv[1:])
