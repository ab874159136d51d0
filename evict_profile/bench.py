"""`evict-profile bench`: how long a decision takes, and what each policy earns.

Policies decode synthetic traces, one a mix of text, at a table's prices: a replay
where the truth is known. Decisions are timed where they run, since one that takes as
long as the nodes it saves is no gain. On a CPU a truncator's plan is timed against a
straightforward numpy version of the ratio (a stable argsort and a scan) and against
torch's sort of the same probabilities, the least that tensor code must do; on a GPU
inside a CUDA graph against the sort. Contenders take turns in random order, round by
round, so that a change of the machine's speed meets them all; the fastest round over
that of the numpy version is what a busy machine can still tell.

And each policy is timed through whole steps, level by level with every question, its
plan and what it learns: `evict-profile replay --decisions` charges steps for that.
"""

import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evict_profile.records import replace, to_mapping
from evict_profile.replay.compare import Comparison, Scenario, ScenarioReplay
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.decisions import SCHEMA, DecisionTime
from evict_profile.replay.policies import (
    BEST_PAIR,
    PAIR_CONDITIONAL,
    THRESHOLD,
    Fixed,
    MakePolicy,
    Policy,
    Threshold,
    guided,
)
from evict_profile.replay.wrong_tables import name_of
from evict_profile.runtime import CostTable, Truncator, scan
from evict_profile.runtime.decision import ALLOCATIONS
from evict_profile.stats import Floats, Ints, median_interval
from evict_profile.sweep.machine import cpu_name
from evict_profile.table import (
    Acceptance,
    ConditionalAcceptance,
    DraftClock,
    Drafting,
)
from evict_profile.traces.synthetic import MIXES, synthetic_trace

BATCHES = (1, 16, 64, 256)
NODES = (16, 60, 256, 1024)
CONTEXT = 12_800
"""Where no table was measured, so that the fit prices every size."""

STEP_BATCHES = (1, 4, 16, 64)
STEP_NODES, STEP_LEVELS, SIBLINGS = 60, 5, 3
ROUNDS = 21
SAMPLE_US = 2_000.0
"""A sample repeats a call until it is this long, so that the clock is no part of it."""

NUMPY = "plain numpy"

Call = Callable[[], object]
Level = tuple[Floats, Ints | None]
"""What a policy is shown; see `PolicyStep.extend`."""


@dataclass(frozen=True)
class Timing:
    """One contender at one size; median and its 95 % interval over rounds.

    `over_numpy` is the fastest round over that of the plain numpy version; 0 where none
    ran.
    """

    device: str
    batch: int
    nodes: int
    what: str
    median_us: float
    low_us: float
    high_us: float
    over_numpy: float


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    return {
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "loops": "compiled" if scan.COMPILED else "numpy",
        "load": os.getloadavg()[0],
        "at_unix": round(time.time()),
    }


def compare_policies(
    table: CostTable, prompts: int, tokens: int, progress: Callable[[str], None]
) -> list[Comparison]:
    """All policies on each mix, one request at a time, at the table's least context."""
    context = int(table.fit.domain["context"][0])
    comparisons = []
    for mix in MIXES.values():
        progress(f"{mix.name}: {prompts} replies of {tokens} tokens")
        trace = synthetic_trace(mix, prompts, tokens, context)
        scenario = Scenario(mix.name, 0.0, 1)
        replay = ScenarioReplay(TraceArrays(trace), table, scenario, seeds=1)
        comparisons.append(replay.compare())
    return comparisons


def time_decisions(table: CostTable, progress: Callable[[str], None]) -> list[Timing]:
    """All contenders at every size, on the CPU and on a GPU where there is one."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    timings: list[Timing] = []
    for device, batch, nodes in product(devices, BATCHES, NODES):
        progress(f"decision on {device}, batch {batch} x {nodes} nodes")
        timings += time_size(table, device, batch, nodes, ROUNDS)
    return timings


def time_all_steps(table: CostTable, progress: Callable[[str], None]) -> list[Timing]:
    """Every policy's decisions in whole steps, on the CPU, at every batch."""
    timings: list[Timing] = []
    for batch in STEP_BATCHES:
        progress(f"decisions of a step, batch {batch} x {STEP_NODES} nodes")
        timings += time_steps(table, batch, ROUNDS)
    return timings


def priced_everywhere(table: CostTable) -> CostTable:
    """The table with prices of every size that is timed, which it never measured.

    What a decision takes hardly depends on what a table says.
    """
    tokens = BATCHES[-1] * (NODES[-1] + 1)
    reach = {
        "batch": (1, BATCHES[-1]),
        "context": (1, CONTEXT),
        "tokens": (1, tokens),
        "width": (1, tokens),
    }
    fit = replace(table.fit, domain=table.fit.domain | reach)
    return replace(table, fit=fit, axes=replace(table.axes, ladder=()))


def time_size(
    table: CostTable, device: str, batch: int, nodes: int, rounds: int
) -> list[Timing]:
    """Time the contenders of one device at one size."""
    on_gpu = device == "cuda"
    contenders = (_on_gpu if on_gpu else _on_cpu)(table, random_drafts(batch, nodes))
    settle = torch.cuda.synchronize if on_gpu else lambda: None
    turns = take_turns(contenders, settle, rounds)
    return list(_timings((device, batch, nodes), turns))


def time_steps(table: CostTable, batch: int, rounds: int) -> list[Timing]:
    """Time every policy's decisions in whole steps of 60 nodes in five levels."""
    levels = random_levels(batch)
    drafts = random_drafts(batch, STEP_NODES).numpy()
    contenders: dict[str, Call] = {
        name: partial(decide_step, make(), levels)
        for name, make in _policies(table).items()
    }
    cost_us = 1e3 + 10.0 * np.arange(batch * (STEP_NODES + 1) + 1.0)
    contenders[NUMPY] = lambda: plain_numpy(drafts, cost_us)
    turns = take_turns(contenders, lambda: None, rounds)
    return list(_timings(("cpu", batch, STEP_NODES), turns))


def decide_step(policy: Policy, levels: Sequence[Level]) -> None:
    """All that a policy is asked and told in one step, whatever it says of depth."""
    batch = len(levels[0][0])
    step = policy.begin(batch, CONTEXT, STEP_NODES)
    for level in levels:
        step.deeper()
        step.extend(*level)
    step.keep()
    policy.observe(batch, 1e4)


def _policies(table: CostTable) -> dict[str, MakePolicy]:
    """Those that a replay may charge."""
    bends = tuple(np.linspace(0.0, 1.0, 17).tolist())
    rows = tuple(tuple(f * x for x in bends) for f in (0.95, 0.6, 0.4, 0.3))
    curves = ConditionalAcceptance(bends, rows)
    clock = DraftClock(1, (0.0, *(1e3 + np.arange(STEP_LEVELS + 1.0))), 1e3, 1e3)
    known = Acceptance("random", 1, bends, rows[:1], (0.6, 0.2, 0.1), {}, curves)
    told = replace(
        priced_everywhere(table),
        acceptance=known,
        drafting=Drafting("random", "none", (clock,)),
    )
    fixed = {BEST_PAIR: None, PAIR_CONDITIONAL: curves}
    return {
        **{
            name: partial(Fixed, name, STEP_LEVELS, 16, own)
            for name, own in fixed.items()
        },
        THRESHOLD: partial(Threshold, THRESHOLD, STEP_LEVELS, 0.1),
        **guided(told, STEP_LEVELS),
    }


def _timings(
    size: tuple[str, int, int], turns: Mapping[str, Sequence[float]]
) -> Iterator[Timing]:
    for what, samples in turns.items():
        found = median_interval(samples)
        over = min(samples) / min(turns[NUMPY]) if NUMPY in turns else 0.0
        yield Timing(*size, what, found.median, found.low, found.high, over)


def take_turns(
    contenders: Mapping[str, Call], settle: Call, rounds: int
) -> dict[str, list[float]]:
    """Microseconds a call of each contender, round by round.

    `settle` waits for what was started.
    """
    loops = {what: _loops(call, settle) for what, call in contenders.items()}
    samples: dict[str, list[float]] = {what: [] for what in contenders}
    for seed in range(rounds):
        order = list(contenders)
        random.Random(seed).shuffle(order)
        for what in order:
            spent_us = _clock(contenders[what], settle, loops[what])
            samples[what].append(spent_us / loops[what])
    return samples


def random_levels(batch: int) -> list[Level]:
    """Levels of 60 nodes a tree, siblings of random shares below the best parents."""
    rng, fresh = np.random.default_rng(0), STEP_NODES // STEP_LEVELS
    levels: list[Level] = []
    path = np.ones((batch, 1))
    for level in range(STEP_LEVELS):
        shape = (fresh // SIBLINGS, SIBLINGS) if level else (1, fresh)
        shares = rng.dirichlet(np.ones(shape[1] + 1), (batch, shape[0]))[..., 1:]
        prob = np.sort(shares, axis=2)[:, :, ::-1].copy()
        parent = np.argsort(-path, axis=1)[:, : shape[0]]
        above = np.take_along_axis(path, parent, axis=1)
        path = (above[:, :, None] * prob).reshape(batch, fresh)
        levels.append((prob, parent if level else None))
    return levels


def random_drafts(batch: int, nodes: int) -> Tensor:
    """Path probabilities of binary trees with random shares, float32 [B, N]."""
    generator = torch.Generator().manual_seed(0)
    shares = 0.9 * torch.rand(batch, nodes, generator=generator)
    for node in range(2, nodes):
        shares[:, node] *= shares[:, (node - 2) // 2]
    return shares


def plain_numpy(path_prob: np.ndarray, cost_us: Floats) -> np.ndarray:
    """EVICT's ratio over a batch as one would first write it; int64 [B]."""
    batch, nodes = path_prob.shape
    flat = path_prob.reshape(-1)
    order = np.argsort(-flat, kind="stable")
    benefit = batch + np.concatenate([[0.0], np.cumsum(flat[order], dtype=np.float64)])
    best = np.argmax(benefit / cost_us[batch : batch + len(benefit)])
    keep = np.zeros(len(flat), dtype=bool)
    keep[order[:best]] = True
    widths: np.ndarray = 1 + keep.reshape(batch, nodes).sum(axis=1)
    return widths


def _truncators(table: CostTable) -> dict[str, Truncator]:
    """One for each allocation."""
    rule: dict[str, Any] = {"drafts": "topk", "acceptance": "target-only"}
    return {
        f"plan, {each}": Truncator(
            priced_everywhere(table), allocation=each, outside="clamp", **rule
        )
        for each in ALLOCATIONS
    }


def _on_cpu(table: CostTable, drafts: Tensor) -> dict[str, Call]:
    batch, nodes = drafts.shape
    cost_us = 1e3 + 10.0 * np.arange(batch * (nodes + 1) + 1.0)
    flat, values = drafts.reshape(-1), drafts.numpy()
    plans: dict[str, Call] = {
        what: partial(truncator.plan, drafts, CONTEXT)
        for what, truncator in _truncators(table).items()
    }
    return {
        **plans,
        NUMPY: lambda: plain_numpy(values, cost_us),
        "torch.sort": lambda: torch.sort(flat, descending=True),
    }


def _on_gpu(table: CostTable, drafts: Tensor) -> dict[str, Call]:
    batch, nodes = drafts.shape
    flat = drafts.cuda().reshape(-1)
    contenders: dict[str, Call] = {
        "graph: torch.sort": _graph(lambda: torch.sort(flat, descending=True))
    }
    for what, truncator in _truncators(table).items():
        captured = truncator.captured(batch, nodes, flat.device)
        truncator.price(captured, CONTEXT)
        captured.path_prob.copy_(drafts)
        contenders[f"graph: {what}"] = _graph(captured.run)
    return contenders


def _graph(call: Call) -> Call:
    """The call, captured; torch wants it warmed up on another stream first."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _loops(call: Call, settle: Call) -> int:
    call()  # The first prices what later ones look up.
    loops = 1
    while True:
        spent_us = _clock(call, settle, loops)
        if spent_us >= SAMPLE_US / 2.0:
            return max(1, round(loops * SAMPLE_US / spent_us))
        loops *= 4


def _clock(call: Call, settle: Call, loops: int) -> float:
    settle()
    start = time.perf_counter_ns()
    for _ in range(loops):
        call()
    settle()
    return (time.perf_counter_ns() - start) / 1e3


def as_json(
    table: CostTable,
    comparisons: Sequence[Comparison] | None,
    timings: Sequence[Timing] | None,
    steps: Sequence[Timing] | None,
) -> dict[str, Any]:
    """What `evict-profile bench` writes: the parts that ran."""
    document: dict[str, Any] = {"schema": SCHEMA, "machine": machine()}
    document["table"] = name_of(table)
    parts: dict[str, Sequence[Any] | None] = {
        "policies": comparisons,
        "decision": timings,
        "decision_us": steps
        and [
            DecisionTime(t.what, t.batch, t.median_us, t.low_us, t.high_us)
            for t in steps
        ],
    }
    for name, part in parts.items():
        if part is not None:
            document[name] = [to_mapping(each) for each in part]
    return document
