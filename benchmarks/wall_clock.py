"""Does the replay tell the truth? Its prediction against the engine's own clock.

    python benchmarks/wall_clock.py worlds/stdlib TRACES --table TABLE --prompts 24

Every policy decodes the traced replies again with the real engine, in the order in
which the replay simulates them. Policies take turns of a few steps, in an order drawn
anew each time, so that whatever the machine does, it does to all of them; turns are
sized so that all policies end together. What comes out is tokens a second by CPU time
(on a GPU, wall time) and by wall time, beside what the replay predicts, and the same
over plain decoding: ratios are what a replay is believed for.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console

from benchmarks.common import Answer, amount, command, count, restart_on_one_thread
from evict_profile.errors import ConfigError
from evict_profile.io import parse_share
from evict_profile.records import to_mapping
from evict_profile.replay.compare import MIXED, Scenario, ScenarioReplay
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    AR,
    PAIR_CONDITIONAL,
    Fixed,
    MakePolicy,
    Policy,
    PolicyStep,
    guided,
)
from evict_profile.replay.simulate import Run, reply_order, simulate
from evict_profile.report.tables import Rows, print_rows
from evict_profile.stats import Estimate, Floats
from evict_profile.table import CostTable, files_of
from evict_profile.traces import Reply, Trace, load_traces
from runners.tree_decoding.clocks import now
from runners.tree_decoding.serving import ContinuousBatching, Job, Served
from runners.tree_decoding.session import TraceSession

TURN = 2
"""Steps a turn of the policy that makes fewest steps."""
RESAMPLES = 2000
PROMPT_TOKENS = 128
CPU = torch.device("cpu")

COLUMNS: dict[str, Callable[[Served], float]] = {
    "tokens": lambda s: sum(s.counted),
    "us": lambda s: s.step.times.step.us,
    "wall_us": lambda s: s.step.times.step.wall_us,
    "verify_us": lambda s: s.step.times.verify.us,
    "draft_us": lambda s: sum(t.us for t in s.step.times.levels),
    "fixed_us": lambda s: s.step.times.fixed.us,
    "verified": lambda s: sum(1 + t.token.shape[1] for t in s.step.trees),
    "committed": lambda s: sum(s.step.committed),
    "levels": lambda s: s.step.levels,
}
"""Numbers of one step."""


@dataclass(frozen=True)
class CheckedPolicy:
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
    measured: Estimate
    measured_wall: Estimate
    predicted_over_plain: float
    measured_over_plain: Estimate
    gap: Estimate
    parts: dict[str, tuple[float, float]]
    decision_us: float
    verified: float
    committed: float
    levels: float


@command
def main(arguments: Sequence[str]) -> None:
    """Check scenarios of a trace; print them, and write all numbers as JSON."""
    options = parse(arguments)
    inputs = [options.world, options.traces, *files_of(options.table)]
    answer, table = Answer(options.out, inputs), CostTable.load(options.table)
    trace, session = open_trace(options)
    results = []
    for part, scenario in list(scenarios(trace, options)):
        rows = list(check(session, part, table, scenario, options.prompts))
        show(scenario, rows)
        results.append(
            {
                "scenario": to_mapping(scenario),
                "rows": [to_mapping(row) for row in rows],
            }
        )
        answer.keep(results)
    answer.write(results)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("world", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--prompts", type=count, required=True, help="as traced")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--batch", type=count, action="append")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--temperature", type=amount, action="append")
    parser.add_argument("--out", type=Path, default=Path("wall_clock.json"))
    return parser.parse_args(arguments)


def open_trace(options: argparse.Namespace) -> tuple[Trace, TraceSession]:
    """The part of a trace that is judged, and its world, with trees as traced.

    Raises:
        ConfigError: fewer prompts than were traced; other texts would be decoded.
    """
    whole = load_traces(options.traces)
    last = max(reply.prompt for reply in whole.replies)
    if last >= options.prompts:
        raise ConfigError(
            f"--prompts {options.prompts}: the trace has a prompt {last}, counted from "
            "0; give the --prompts that it was traced with"
        )
    trace = whole.part(*parse_share("--part", options.part))
    shared = ("depth", "topk", "nodes", "reference_us")
    tree = {name: getattr(trace.about, name) for name in shared}
    session = TraceSession(str(options.world), tree | {"prompt_tokens": PROMPT_TOKENS})
    return trace, session


def scenarios(
    trace: Trace, options: argparse.Namespace
) -> Iterator[tuple[Trace, Scenario]]:
    """The parts of a trace that are checked; all workloads and the mix by default."""
    for temperature in options.temperature or trace.temperatures:
        for workload in options.workload or [*trace.workloads, MIXED]:
            part = trace.only(None if workload == MIXED else workload, temperature)
            for batch in options.batch or [1]:
                yield part, Scenario(workload, temperature, batch)


def check(
    session: TraceSession,
    part: Trace,
    table: CostTable,
    scenario: Scenario,
    prompts: int,
) -> Iterator[CheckedPolicy]:
    """Predict and measure every policy in one scenario."""
    arrays = TraceArrays(part)
    replay = ScenarioReplay(arrays, table, scenario, 1)
    policies = policies_of(replay)
    runs = {
        name: simulate(arrays, make(), replay.prices, scenario.batch, 0)
        for name, make in policies.items()
    }
    steps = {name: len(run.rows) for name, run in runs.items()}
    print(
        f"{scenario}: {len(policies)} policies decode {arrays.tokens} tokens",
        flush=True,
    )
    measured = serve_all(session, part, policies, steps, prompts, scenario.batch)
    for name in policies:
        yield compare(name, runs, measured)


def policies_of(replay: ScenarioReplay) -> dict[str, MakePolicy]:
    """Policies to check: fixed ones, the best of them by the replay, and the guided."""
    depth, nodes = replay.arrays.depth, replay.arrays.nodes
    points = replay.tune()
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
    if replay.conditional:
        pair = replay.conditional_pair()
        setting = f"{pair.width} tokens at depth {pair.depth}"
        fixed[f"{PAIR_CONDITIONAL} ({setting})"] = lambda: pair
    return fixed | dict(guided(replay.table, depth))


def serve_all(
    session: TraceSession,
    trace: Trace,
    policies: Mapping[str, MakePolicy],
    steps: Mapping[str, int],
    prompts: int,
    batch: int,
) -> dict[str, "Measured"]:
    """Decode the trace's replies with every policy; `steps`: how many each takes."""
    jobs = [session.job(request_of(reply, prompts)) for reply in trace.replies]
    working = {
        name: PolicyDecoding(session, make(), jobs, batch)
        for name, make in policies.items()
    }
    turns = turns_of(steps)
    rng = np.random.default_rng(0)
    while busy := [name for name, one in working.items() if not one.serving.ended]:
        for name in rng.permutation(busy):
            working[name].take_turn(turns[name])
    return {
        name: Measured(one.steps, turns[name], one.policy.us)
        for name, one in working.items()
    }


def turns_of(steps: Mapping[str, int]) -> dict[str, int]:
    """Steps of a turn, in proportion to the steps that each policy makes in all."""
    fewest = min(steps.values())
    return {name: round(TURN * count / fewest) for name, count in steps.items()}


def request_of(reply: Reply, prompts: int) -> dict[str, Any]:
    """The request that had this reply traced."""
    names = ("workload", "prompt", "seed", "temperature", "tokens")
    return {name: getattr(reply, name) for name in names} | {"prompts": prompts}


class Timed:
    """A policy, or one step of it, and the CPU time that it took to decide."""

    def __init__(self, policy: Policy) -> None:
        self.depth, self.us = policy.depth, 0.0
        self._begin = self._timed(policy.begin)
        self.observe = self._timed(policy.observe)

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        step = self._begin(batch, context, nodes)
        asked = {name: getattr(step, name) for name in ("deeper", "extend", "keep")}
        return cast(
            PolicyStep,
            SimpleNamespace(**{name: self._timed(ask) for name, ask in asked.items()}),
        )

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begun = now(CPU)
            result = method(*given)
            self.us += (now(CPU) - begun).cpu_us
            return result

        return run


class PolicyDecoding:
    """A policy at work, with an engine of its own."""

    def __init__(
        self, session: TraceSession, policy: Policy, jobs: Sequence[Job], batch: int
    ) -> None:
        """`jobs` are decoded in the order in which a replay simulates them."""
        self.policy = Timed(policy)
        engine = session.engine(batch, max(job.tokens for job in jobs), None)
        order = reply_order(len(jobs), 0)
        self.serving = ContinuousBatching(engine, self.policy, jobs, order, batch)
        self.steps: list[list[float]] = []

    def take_turn(self, steps: int) -> None:
        """So many steps, or as many as are left."""
        for _ in range(steps):
            if not self.serving.ended:
                served = self.serving.serve()
                self.steps.append([float(read(served)) for read in COLUMNS.values()])


class Measured:
    """What one policy did on the real clock, step by step."""

    def __init__(
        self, steps: Sequence[Sequence[float]], turn: int, decided_us: float
    ) -> None:
        """`steps`: of each its `COLUMNS`; `turn`: steps of a turn."""
        self.turn = turn
        self.decision_us = decided_us / len(steps)
        values = np.array(steps, dtype=np.float64).T
        self.columns: dict[str, Floats] = dict(zip(COLUMNS, values, strict=True))

    def mean(self, name: str) -> float:
        """Of a step."""
        return float(self.columns[name].mean())

    def tokens_per_s(self, clock: str) -> Floats:
        """As measured, then in resamples of turns: float64 [1 + resamples]."""
        return 1e6 * self.ratio(self.columns["tokens"], self.columns[clock], seed=0)

    def ratio(self, above: Floats, below: Floats, seed: int) -> Floats:
        """Ratio of two sums over steps, then of resampled turns: [1 + resamples].

        The steps of a turn are drawn together, because they share a moment.
        """
        begins = np.arange(0, len(above), self.turn)
        turns = np.stack([np.add.reduceat(x, begins) for x in (above, below)])
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, len(begins), (RESAMPLES, len(begins)))
        sums = np.hstack([turns.sum(axis=1)[:, None], turns[:, drawn].sum(axis=2)])
        ratio: Floats = sums[0] / sums[1]
        return ratio


def compare(
    name: str, runs: Mapping[str, Run], measured: Mapping[str, Measured]
) -> CheckedPolicy:
    """One policy's prediction and its measurement."""
    run, own, plain = runs[name], measured[name], measured[AR]
    committed = own.columns["committed"]
    same_steps = np.array_equal(committed, (1 + run.accepted).sum(axis=1))
    over = own.tokens_per_s("us") / plain.tokens_per_s("us")
    slower = plain.ratio(plain.columns["us"], runs[AR].step_us, seed=1)
    faster = (
        own.ratio(run.step_us, own.columns["us"], seed=0)
        if same_steps
        else own.tokens_per_s("us") / run.tokens_per_s
    )
    names = ("verify_us", "draft_us", "fixed_us")
    means = zip(names, run.price.mean(axis=0), strict=False)
    return CheckedPolicy(
        policy=name,
        same_steps=same_steps,
        predicted=round(run.tokens_per_s, 1),
        measured=Estimate.of(own.tokens_per_s("us")),
        measured_wall=Estimate.of(own.tokens_per_s("wall_us")),
        predicted_over_plain=round(run.tokens_per_s / runs[AR].tokens_per_s, 4),
        measured_over_plain=Estimate.of(over),
        gap=Estimate.of(faster * slower),
        parts={n: (round(float(mean)), round(own.mean(n))) for n, mean in means},
        decision_us=round(own.decision_us),
        verified=round(own.mean("verified"), 2),
        committed=round(own.mean("committed"), 3),
        levels=round(own.mean("levels"), 2),
    )


def show(scenario: Scenario, rows: Sequence[CheckedPolicy]) -> None:
    """Print one scenario."""

    def of(part: str) -> Callable[[CheckedPolicy], str]:
        return lambda row: "{} / {}".format(*row.parts[part])

    columns: dict[str, Callable[[CheckedPolicy], object]] = {
        "policy": lambda row: row.policy,
        "over plain, replayed": lambda row: f"{row.predicted_over_plain:.3f}",
        "by the clock": lambda row: row.measured_over_plain,
        "clock / replay": lambda row: row.gap,
        "same steps": lambda row: "yes" if row.same_steps else "no",
        "tokens/s": lambda row: f"{row.measured.value:.0f}",
        "verify, us": of("verify_us"),
        "draft, us": of("draft_us"),
        "rest, us": of("fixed_us"),
        "decision, us": lambda row: row.decision_us,
    }
    title = f"\n{scenario}; times of a step: as replayed / by the clock"
    print_rows(Console(), Rows.of(rows, columns), title)


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
