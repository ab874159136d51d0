"""EVICT's claims, one by one, against its own baseline: a tree of 4 levels, 32 tokens.

A rule is EVICT's ratio with the drafter's probabilities (raw), or with acceptance that
half of the prompts have shown (calibrated). Ablations replace one side of the ratio.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.claims.worlds import (
    EVICT_DEPTH,
    EVICT_NODES,
    Means,
    World,
    mean,
    raw,
)
from evict_profile.calibrate.acceptance import CURVES
from evict_profile.calibrate.held_out import BINS, hold_out
from evict_profile.records import replace as changed
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.policies import (
    BEST_PAIR,
    RATE_DEPTH,
    RATIO,
    Fixed,
    Guided,
    MakePolicy,
    Threshold,
    full_tree,
    plain_decoding,
)
from evict_profile.replay.sums import Sums, less_optimism, tokens_per_s
from evict_profile.replay.tuning import THRESHOLDS
from evict_profile.stats import Bootstrap, Estimate, Floats, rank_within
from evict_profile.table import CostTable, DraftClock
from evict_profile.traces import Trace
from evict_profile.traces.trace import Nodes

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
    yield from ablations(world)
    yield from where_it_loses(world)


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
        self.replay, self.table = replay, replay.table
        self.whole = replay.sums(whole_tree)

    def over(
        self, make: MakePolicy, of: Means = tokens_per_s, base: Sums | None = None
    ) -> Estimate:
        sums = self.replay.sums(make)
        return self.replay.bootstrap.ratio(of(sums) / of(base or self.whole))


def judged(world: World, workload: str = MIXED, batch: int = 1) -> Judged:
    return Judged(world.replay(workload, batch, depth=EVICT_DEPTH, nodes=EVICT_NODES))


def trades(world: World) -> Iterator[Row]:
    """What a cut trades, at batch 1."""
    found = judged(world)
    for name, table in (("raw", raw(found.table)), ("calibrated", found.table)):
        sums = found.replay.sums(rule(table))
        for what, of in TRADES.items():
            change = found.replay.bootstrap.ratio(of(sums) / of(found.whole))
            on = f"mixed, T=0, batch 1, {name}"
            yield Row(f"{what} over the tree", PAPER[what], percent(change), on)


def speeds(world: World, paper: str) -> Iterator[Row]:
    found = judged(world)
    for name, table in (("raw", raw(found.table)), ("calibrated", found.table)):
        on = f"mixed, T={world.temperature:g}, batch 1, {name}"
        yield Row("speed over the tree", paper, percent(found.over(rule(table))), on)


def over_plain(world: World) -> Iterator[Row]:
    """Times plain decoding; a best pair of depth and width is chosen in hindsight."""
    found, on = judged(world), "mixed, T=0, batch 1"
    plain = found.replay.sums(plain_decoding)
    own, ratio = world.replay(), found.replay.bootstrap.ratio
    rows = {
        "the tree": ("1.22 [N]", found.whole),
        "rule, raw": (
            "1.40 [N], up to 2.35 [A]",
            found.replay.sums(rule(raw(found.table))),
        ),
        "rule, calibrated": (
            "1.40 [N], up to 2.35 [A]",
            found.replay.sums(rule(found.table)),
        ),
        "best fixed depth and width": ("not stated", best_pair(own)),
        "rate and depth": ("no claim", own.sums(rule(own.table, RATE_DEPTH, 5))),
    }
    for name, (paper, sums) in rows.items():
        shown = plainly(ratio(tokens_per_s(sums) / tokens_per_s(plain)))
        yield Row(f"{name} over plain decoding", paper, shown, on)


def best_pair(replay: ScenarioReplay) -> Sums:
    """The fastest fixed depth and width in hindsight, less its optimism."""
    chosen = {each.name: (each, bias) for each, bias in replay.chosen(replay.tune())}
    policy, bias = chosen[BEST_PAIR]
    return less_optimism(replay.sums(lambda: policy), bias)


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


def ablations(world: World) -> Iterator[Row]:
    """One side of the ratio replaced, at batch 1."""
    found, on = judged(world), "mixed, T=0, batch 1"
    flat = constant_acceptance(world)
    best = max(
        (Threshold("", EVICT_DEPTH, least) for least in THRESHOLDS),
        key=lambda each: tokens_per_s(found.replay.sums(lambda: each))[0],
    )
    rows: dict[str, tuple[str, MakePolicy]] = {
        "constant cost": ("insufficient alone [N]", rule(constant_cost(found.table))),
        f"no cost: nodes above {best.least:g}, in hindsight": (
            "insufficient alone [N]",
            lambda: best,
        ),
        "no benefit: the cheapest step": ("not stated", plain_decoding),
        "constant acceptance": ("not stated", rule(flat)),
    }
    for name, (paper, make) in rows.items():
        yield Row(f"{name}, over the tree", paper, percent(found.over(make)), on)


def constant_cost(table: CostTable) -> CostTable:
    """A table in which every step takes as long, and drafting takes nothing."""
    one = tuple(t for t in table.fit.non_moe if t.feature == "one")
    fit = changed(table.fit, layers=one, non_moe=())
    clocks = tuple(
        changed(c, draft_us=(0.0,) * len(c.draft_us)) for c in _clocks(table)
    )
    drafting = changed(table.drafting, batches=clocks)
    return changed(table, fit=fit, drafting=drafting).read_anew()


def constant_acceptance(world: World) -> CostTable:
    """A table in which each node is accepted as often as all are in the mean."""
    nodes = evict_nodes(world.of(half=0)).nodes
    share = round(float(nodes.accepted.mean()), 6)
    flat = changed(
        world.table.acceptance,
        scores=(0.0, 1e-6, 1.0),
        acceptances=((0.0, share, share),),
        conditional=None,
    )
    return changed(world.table, acceptance=flat)


def where_it_loses(world: World) -> Iterator[Row]:
    """Large batches, and a drafter that drafts all levels at once."""
    for batch in (4, 16):
        found = judged(world, "code", batch)
        for name, table in (("raw", raw(found.table)), ("calibrated", found.table)):
            paper = "-7 %, HumanEval [N]" if batch == 16 else "not stated"
            shown, on = percent(found.over(rule(table))), f"code, T=0, batch {batch}"
            yield Row("speed over the tree", paper, shown, f"{on}, {name}")
    blocks = World(independent(world.whole), block_clock(world.base))
    found = judged(blocks, MIXED, 4)
    shown = percent(found.over(rule(raw(found.table))))
    on = "mixed, T=0, batch 4, raw, planted"
    yield Row("block drafter: speed over the tree", "-12 % [N]", shown, on)


def independent(trace: Trace) -> Trace:
    """The same trees, whose probabilities do not know the drafted prefix.

    A node has the mean probability of its rank at its depth in its tree, as a drafter
    of whole blocks would give it; what is accepted stays as recorded.
    """
    nodes = trace.nodes
    ranks = 1 + int(nodes.rank.max())
    levels = 1 + int(nodes.depth.max())
    place = (nodes.step * levels + nodes.depth) * ranks + nodes.rank
    count = np.bincount(place)
    own = (np.bincount(place, nodes.own_prob) / np.maximum(count, 1))[place]
    path = own.copy()
    for depth in range(2, levels):
        here = np.flatnonzero(nodes.depth == depth)
        path[here] = own[here] * path[nodes.parent[here]]
    return replace(trace, nodes=replace(nodes, path_prob=path))


def block_clock(table: CostTable) -> CostTable:
    """Drafting of all levels takes the time of one."""
    clocks = tuple(
        changed(c, draft_us=(0.0, *c.draft_us[1:2] * (len(c.draft_us) - 1)))
        for c in _clocks(table)
    )
    return changed(table, drafting=changed(table.drafting, batches=clocks))


def _clocks(table: CostTable) -> tuple[DraftClock, ...]:
    assert table.drafting, "the shipped table has clocks of drafting"
    return table.drafting.batches
