"""`evict-profile bench`: how long a decision takes, and what each policy earns.

Policies decode synthetic traces, one a mix of text, at a table's prices: a replay
where the truth is known. Decisions are timed where they run, since one that takes as
long as the nodes it saves is no gain. On a CPU a truncator's plan is timed against a
straightforward numpy version of the ratio (a stable argsort) and against torch's sort
of the same probabilities, the least that tensor code must do; on a GPU inside a CUDA
graph against the sort. Contenders take turns in random order, round by round, so that
a change of the machine's speed meets them all.
"""

import os
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evict_profile.records import to_mapping
from evict_profile.replay.compare import Comparison, Scenario, ScenarioReplay
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.wrong_tables import name_of
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.decision import ALLOCATIONS
from evict_profile.stats import Floats, MedianInterval, median_interval
from evict_profile.sweep.machine import cpu_name
from evict_profile.traces.synthetic import MIXES, synthetic_trace

SCHEMA = "evict-bench/2"
BATCHES = (1, 16, 64, 256)
NODES = (16, 60, 256, 1024)
ROUNDS = 21
SAMPLE_US = 2_000.0
"""A sample repeats a call until it is this long, so that the clock is no part of it."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One contender at one size; median and its 95 % interval over rounds."""

    device: str
    batch: int
    nodes: int
    what: str
    median_us: float
    low_us: float
    high_us: float


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    return {
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
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


def time_size(
    table: CostTable, device: str, batch: int, nodes: int, rounds: int
) -> list[Timing]:
    """Time the contenders of one device at one size."""
    on_gpu = device == "cuda"
    contenders = (_on_gpu if on_gpu else _on_cpu)(table, random_drafts(batch, nodes))
    settle = torch.cuda.synchronize if on_gpu else lambda: None
    turns = take_turns(contenders, settle, rounds)
    return [
        Timing(device, batch, nodes, what, found.median, found.low, found.high)
        for what, found in turns.items()
    ]


def take_turns(
    contenders: Mapping[str, Call], settle: Call, rounds: int
) -> dict[str, MedianInterval]:
    """Microseconds a call of each contender; `settle` waits for what was started."""
    loops = {what: _loops(call, settle) for what, call in contenders.items()}
    samples: dict[str, list[float]] = {what: [] for what in contenders}
    for seed in range(rounds):
        order = list(contenders)
        random.Random(seed).shuffle(order)
        for what in order:
            spent_us = _clock(contenders[what], settle, loops[what])
            samples[what].append(spent_us / loops[what])
    return {what: median_interval(values) for what, values in samples.items()}


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
    """One for each allocation; prices do not change the time, so any table will do."""
    rule: dict[str, Any] = {"drafts": "topk", "acceptance": "target-only"}
    return {
        f"plan, {each}": Truncator(table, allocation=each, outside="clamp", **rule)
        for each in ALLOCATIONS
    }


def _on_cpu(table: CostTable, drafts: Tensor) -> dict[str, Call]:
    batch, nodes = drafts.shape
    context = float(table.fit.domain["context"][0])
    cost_us = 1e3 + 10.0 * np.arange(batch * (nodes + 1) + 1.0)
    flat, values = drafts.reshape(-1), drafts.numpy()
    plans: dict[str, Call] = {
        what: partial(truncator.plan, drafts, context)
        for what, truncator in _truncators(table).items()
    }
    return {
        **plans,
        "plain numpy": lambda: plain_numpy(values, cost_us),
        "torch.sort": lambda: torch.sort(flat, descending=True),
    }


def _on_gpu(table: CostTable, drafts: Tensor) -> dict[str, Call]:
    batch, nodes = drafts.shape
    context = float(table.fit.domain["context"][0])
    flat = drafts.cuda().reshape(-1)
    contenders: dict[str, Call] = {
        "graph: torch.sort": _graph(lambda: torch.sort(flat, descending=True))
    }
    for what, truncator in _truncators(table).items():
        captured = truncator.captured(batch, nodes, flat.device)
        truncator.price(captured, context)
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
) -> dict[str, Any]:
    """What `evict-profile bench` writes: the parts that ran."""
    document: dict[str, Any] = {"schema": SCHEMA, "machine": machine()}
    document["table"] = name_of(table)
    if comparisons is not None:
        document["policies"] = [to_mapping(each) for each in comparisons]
    if timings is not None:
        document["decision"] = [to_mapping(each) for each in timings]
    return document
