"""Does the replay hold? Its prediction against the engine's own clock.

Every policy decodes the traced replies again with the real engine, in the order in
which the replay simulates them. Policies take turns of a few steps, in an order drawn
anew each time, so that whatever the machine does, it does to all of them; turns are
sized so that all policies end together. The output is tokens a second by CPU time (on a
GPU, wall time), beside what the replay predicts, and the same over plain decoding and
over the best setting that knows no cost. All policies decode the same text in the same
order, so a ratio compares their times on each share of it, and its interval draws
shares, about one a reply.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from evict_profile.errors import ConfigError
from evict_profile.io import check_outputs, parse_share, write_json
from evict_profile.records import to_mapping
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    HINDSIGHT,
    PAIR_CONDITIONAL,
    RATE_DEPTH,
    MakePolicy,
    Policy,
    table_policies,
)
from evict_profile.replay.simulate import ReplayRun, simulate
from evict_profile.report.console import Rows, print_rows
from evict_profile.stats import Estimate
from evict_profile.table import CostTable, files_of
from evict_profile.traces import Trace, load_traces
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.tree import TreeShape
from examples.small_world.turns import Measured, serve_all

PROMPT_TOKENS = 128
MOST_OFF = 0.15
"""Of 13 policies at batch 1 and 4 the clock was within 9 % of the replay."""


@dataclass(frozen=True)
class Asked:
    """What to check, as the command `clock` takes it; nothing named means all."""

    world: Path
    traces: Path
    table: Path
    prompts: int
    part: str = "1/1"
    batches: Sequence[int] = (1,)
    workloads: Sequence[str] = ()
    temperatures: Sequence[float] = ()


@dataclass(frozen=True)
class CheckedPolicy:
    """One policy, predicted and measured: tokens a second, and means of a step.

    `gap` is measured over predicted, both over plain decoding; where the engine took
    the very steps of the replay its interval is of time alone. A policy that learns
    from a clock need not.
    """

    policy: str
    same_steps: bool
    predicted: float
    measured: Estimate
    predicted_over_plain: float
    measured_over_plain: Estimate
    measured_over_fixed: Estimate
    gap: Estimate
    parts: dict[str, tuple[float, float]]
    verified: float
    committed: float
    levels: float


def check_replay(asked: Asked, out: Path, console: Console) -> bool:
    """Check scenarios of a trace, print them, and write all numbers as JSON.

    Returns:
        Whether the whole interval of a policy lies more than `MOST_OFF` beside the
        replay.
    """
    check_outputs([out], [asked.world, asked.traces, *files_of(asked.table)])
    table = CostTable.load(asked.table)
    trace, session = open_trace(asked)
    results: list[dict[str, Any]] = []
    off = False
    for part, scenario in scenarios(trace, asked):
        replay = ScenarioReplay(TraceArrays(part), table, scenario, 1)
        policies = policies_of(replay)
        rows = check(session, replay, policies, asked.prompts)
        show(console, scenario, rows)
        off |= any(is_off(row.gap) for row in rows)
        results.append(
            {
                "scenario": to_mapping(scenario),
                "rows": [to_mapping(row) for row in rows],
            }
        )
        write_json(results, out)
    return off


def is_off(gap: Estimate) -> bool:
    """Whether the clock surely differs from the replay by more than `MOST_OFF`."""
    return gap.low > 1.0 + MOST_OFF or gap.high < 1.0 / (1.0 + MOST_OFF)


def open_trace(asked: Asked) -> tuple[Trace, TraceSession]:
    """The part of a trace that is judged, and its world, with trees as traced."""
    whole = load_traces(asked.traces)
    last = max(reply.prompt for reply in whole.replies)
    if last >= asked.prompts:
        raise ConfigError(
            f"--prompts {asked.prompts}: the trace has a prompt {last}, counted from "
            "0; give the --prompts that it was traced with"
        )
    trace = whole.part(*parse_share("--part", asked.part))
    about = trace.about
    tree = TreeShape(about.depth, about.topk, about.nodes)
    session = TraceSession(asked.world, tree, PROMPT_TOKENS, about.reference_us)
    return trace, session


def scenarios(trace: Trace, asked: Asked) -> Iterator[tuple[Trace, Scenario]]:
    """The parts of a trace that are checked; all workloads and the mix by default."""
    for temperature in asked.temperatures or trace.temperatures:
        for workload in asked.workloads or [*trace.workloads, MIXED]:
            part = trace.only([] if workload == MIXED else [workload], [temperature])
            for batch in asked.batches:
                yield part, Scenario(workload, temperature, batch)


def check(
    session: TraceSession,
    replay: ScenarioReplay,
    policies: Mapping[str, MakePolicy],
    prompts: int,
) -> list[CheckedPolicy]:
    """Predict and measure every policy in one scenario."""
    arrays, batch = replay.arrays, replay.scenario.batch
    runs = {
        name: simulate(arrays, make(), replay.costs, batch, 0)
        for name, make in policies.items()
    }
    steps = {name: len(run.rows) for name, run in runs.items()}
    print(
        f"{replay.scenario}: {len(policies)} policies decode {arrays.tokens} tokens",
        flush=True,
    )
    measured = serve_all(session, arrays.trace, policies, steps, prompts, batch)
    plain = measured[AR]
    fixed = max(
        (own for name, own in measured.items() if name.startswith(HINDSIGHT)),
        key=lambda own: own.over(plain)[0],
    )
    return [compare(name, runs, measured, fixed) for name in policies]


def policies_of(replay: ScenarioReplay) -> dict[str, MakePolicy]:
    """Plain decoding, settings that know no cost, and the rule that chooses depth."""
    found: dict[str, MakePolicy] = {}
    for policy, _ in replay.chosen(replay.tune()):
        setting = f" ({policy.setting})" if policy.name in HINDSIGHT else ""
        found[f"{policy.name}{setting}"] = _always(policy)
    found |= table_policies(replay.table, replay.arrays.depth)
    asked = (AR, BEST_PAIR, PAIR_CONDITIONAL, RATE_DEPTH)
    return {name: make for name, make in found.items() if name.startswith(asked)}


def _always(policy: Policy) -> MakePolicy:
    return lambda: policy


def compare(
    name: str,
    runs: Mapping[str, ReplayRun],
    measured: Mapping[str, Measured],
    fixed: Measured,
) -> CheckedPolicy:
    """One policy's prediction and its measurement, beside the best fixed setting's."""
    run, own, plain = runs[name], measured[name], measured[AR]
    committed = own.columns["committed"]
    same_steps = np.array_equal(committed, (1 + run.accepted).sum(axis=1))
    slower = plain.ratio(plain.columns["us"], runs[AR].step_us, seed=1)
    faster = (
        own.ratio(run.step_us, own.columns["us"], seed=0)
        if same_steps
        else own.tokens_per_s() / run.tokens_per_s
    )
    names = ("verify_us", "draft_us", "fixed_us")
    means = zip(names, run.cost.mean(axis=0), strict=False)
    return CheckedPolicy(
        policy=name,
        same_steps=same_steps,
        predicted=round(run.tokens_per_s, 1),
        measured=Estimate.of(own.tokens_per_s()),
        predicted_over_plain=round(run.tokens_per_s / runs[AR].tokens_per_s, 4),
        measured_over_plain=Estimate.of(own.over(plain)),
        measured_over_fixed=Estimate.of(own.over(fixed)),
        gap=Estimate.of(faster * slower),
        parts={n: (round(float(mean)), round(own.mean(n))) for n, mean in means},
        verified=round(own.mean("verified"), 2),
        committed=round(own.mean("committed"), 3),
        levels=round(own.mean("levels"), 2),
    )


def show(console: Console, scenario: Scenario, rows: Sequence[CheckedPolicy]) -> None:
    """Print one scenario."""

    def of(part: str) -> Callable[[CheckedPolicy], str]:
        return lambda row: "{} / {}".format(*row.parts[part])

    columns: dict[str, Callable[[CheckedPolicy], object]] = {
        "policy": lambda row: row.policy,
        "over plain, replayed": lambda row: f"{row.predicted_over_plain:.3f}",
        "by the clock": lambda row: row.measured_over_plain,
        "over best fixed": lambda row: row.measured_over_fixed,
        "clock / replay": lambda row: row.gap,
        "same steps": lambda row: "yes" if row.same_steps else "no",
        "tokens/s": lambda row: f"{row.measured.value:.0f}",
        "verify, us": of("verify_us"),
        "draft, us": of("draft_us"),
        "rest, us": of("fixed_us"),
    }
    title = f"\n{scenario}; times of a step: as replayed / by the clock"
    print_rows(console, Rows.of(rows, columns), title)
