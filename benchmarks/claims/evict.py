"""EVICT's claims, one by one, against its own baseline: a tree of 4 levels, 32 tokens.

A rule is EVICT's ratio with the drafter's probabilities (raw), or with acceptance that
half of the prompts have shown (calibrated).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.claims.world import EVICT_DEPTH, EVICT_NODES, World, raw
from evict_profile.calibrate.acceptance import CURVES
from evict_profile.calibrate.held_out import BINS, hold_out
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.policies import (
    RATE_DEPTH,
    RATIO,
    Fixed,
    Guided,
    MakePolicy,
    full_tree,
    plain_decoding,
)
from evict_profile.replay.sums import Sums, tokens_per_s
from evict_profile.stats import Estimate, Floats, rank_within
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from evict_profile.traces.resampling import Bootstrap
from evict_profile.traces.trace import Nodes

Means = Callable[[Sums], Floats]


def mean(column: str) -> Means:
    return lambda sums: sums[column] / sums["requests"]


TRADES: dict[str, Means] = {
    "speed": tokens_per_s,
    "tokens a step": mean("committed"),
    "verified tokens": mean("verified"),
    "activated experts": mean("union"),
    "verification time": mean("verify_us"),
}
PAPER = {
    "speed": "+15 to +25 % [N], +21 % [A]",
    "tokens a step": "-15 % [N]",
    "verified tokens": "-74.7 % [N]",
    "activated experts": "-32.5 % [N]",
    "verification time": "-26.6 % [N]",
}
"""Means of six tasks, A100, temperature 0. [N]: a third party's notes on the full text;
[A]: the abstract."""


@dataclass(frozen=True)
class Row:
    claim: str
    paper: str
    ours: str
    on: str


def claims(world: World, warm: World) -> Iterator[Row]:
    """All rows; `warm` is the same world at temperature 1."""
    yield from trades(world)
    yield from speeds(warm, "+15 % [N]")
    yield from over_plain(world)
    yield from calibration(world, warm)
    yield from at_batches(world)


def percent(found: Estimate) -> str:
    """A ratio as a change: "+2.1 % (-0.4..+4.6)"."""
    value, low, high = (
        f"{100.0 * (each - 1.0):+.1f}" for each in (found.value, found.low, found.high)
    )
    return f"{value} % ({low}..{high})"


def plainly(found: Estimate, form: str = ".2f") -> str:
    value, low, high = (format(x, form) for x in (found.value, found.low, found.high))
    return f"{value} ({low}..{high})"


def rule(table: CostTable, name: str = RATIO, depth: int = EVICT_DEPTH) -> MakePolicy:
    return partial(Guided, name, depth, table)


def whole_tree() -> Fixed:
    return full_tree(EVICT_NODES, EVICT_DEPTH)


class Judged:
    """Policies in one scenario, over EVICT's baseline."""

    def __init__(self, replay: ScenarioReplay) -> None:
        self.replay = replay
        self.whole = replay.sums(whole_tree)

    def over(self, make: MakePolicy) -> Estimate:
        speed, base = (tokens_per_s(x) for x in (self.replay.sums(make), self.whole))
        return self.replay.bootstrap.ratio(speed / base)


def judged(world: World, workload: str = MIXED, batch: int = 1) -> Judged:
    return Judged(world.replay(workload, batch, depth=EVICT_DEPTH, nodes=EVICT_NODES))


def tables_of(world: World) -> dict[str, CostTable]:
    """What the rule reads: the drafter's probabilities, or measured acceptance."""
    return {"raw": raw(world.table), "calibrated": world.table}


def trades(world: World) -> Iterator[Row]:
    """What a cut trades, at batch 1."""
    scenario = judged(world)
    replay = scenario.replay
    for name, table in tables_of(world).items():
        sums = replay.sums(rule(table))
        for what, of in TRADES.items():
            change = replay.bootstrap.ratio(of(sums) / of(scenario.whole))
            on = f"mixed, T=0, batch 1, {name}"
            yield Row(f"{what} over the tree", PAPER[what], percent(change), on)


def speeds(
    world: World, paper: str, text: str = MIXED, batch: int = 1
) -> Iterator[Row]:
    scenario = judged(world, text, batch)
    for name, table in tables_of(world).items():
        on = f"{text}, T={world.temperature:g}, batch {batch}, {name}"
        yield Row("speed over the tree", paper, percent(scenario.over(rule(table))), on)


def over_plain(world: World) -> Iterator[Row]:
    """Times plain decoding."""
    scenario, whole = judged(world), world.replay()
    sums, ratio = scenario.replay.sums, scenario.replay.bootstrap.ratio
    plain, paper = sums(plain_decoding), "1.40 [N], up to 2.35 [A]"
    with_depth = rule(world.table, RATE_DEPTH, whole.arrays.depth)
    speeds = {
        "the tree": ("1.22 [N]", scenario.whole),
        "rule, raw": (paper, sums(rule(raw(world.table)))),
        "rule, calibrated": (paper, sums(rule(world.table))),
        "rate and depth": ("no claim", whole.sums(with_depth)),
    }
    for name, (stated, own) in speeds.items():
        shown = plainly(ratio(tokens_per_s(own) / tokens_per_s(plain)))
        yield Row(f"{name} over plain decoding", stated, shown, "mixed, T=0, batch 1")


def calibration(*worlds: World) -> Iterator[Row]:
    """Expected calibration error of path probabilities in EVICT's trees."""
    papers = {"code": "0.011 [N]", "prose": "0.020, questions [N]"}
    for world in worlds:
        for workload, paper in papers.items():
            trace = evict_nodes(world.whole.only([workload]))
            found = hold_out(trace)
            chosen = found.one_standard_error_rule(list(CURVES))
            for name, key in (("raw", "raw"), ("calibrated", chosen)):
                error = calibration_error(trace, found.chances[key])
                on = f"{workload}, T={world.temperature:g}, {name}"
                yield Row("calibration error", paper, plainly(error, ".3f"), on)


def evict_nodes(trace: Trace) -> Trace:
    """The trace with no more than the nodes of EVICT's trees."""
    nodes = trace.nodes
    shallow = np.where(nodes.depth <= EVICT_DEPTH, nodes.path_prob, -1.0)
    kept = (shallow >= 0.0) & (rank_within(nodes.step, shallow) < EVICT_NODES)
    number = np.cumsum(kept) - 1
    above = nodes.parent[kept]
    return replace(
        trace,
        nodes=Nodes(
            nodes.step[kept],
            np.where(above >= 0, number[above], -1),
            nodes.path_prob[kept],
            nodes.accepted[kept],
        ),
        routes=None,
    )


def calibration_error(trace: Trace, chance: Floats) -> Estimate:
    """Over bins of equal count; whole prompts are resampled."""
    accepted, bins = trace.nodes.accepted, np.empty(len(chance), np.int64)
    bins[np.argsort(chance, kind="stable")] = (
        np.arange(len(chance)) * BINS // len(chance)
    )
    prompts = len(trace.prompts)
    prompt = trace.prompt[trace.reply[trace.nodes.step]]
    gaps = np.bincount(prompt * BINS + bins, chance - accepted, prompts * BINS)
    count = np.bincount(prompt, minlength=prompts)
    boot = Bootstrap(prompts)
    columns = np.column_stack([gaps.reshape(prompts, BINS), count])
    *by_bin, total = boot.sums(columns)
    return boot.estimate(np.abs(by_bin).sum(axis=0) / total)


def at_batches(world: World) -> Iterator[Row]:
    """Where the paper states a loss: code at larger batches."""
    for batch in (4, 16):
        paper = "-7 %, HumanEval [N]" if batch == 16 else "not stated"
        yield from speeds(world, paper, "code", batch)
