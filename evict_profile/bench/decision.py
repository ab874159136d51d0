"""How long the decision takes, beside what it replaces and what it cannot do without.

A decision that takes as long as the nodes it saves is no gain, so it is measured where
it runs. On a CPU: a truncator's plan, against a straightforward numpy version of the
same rule (a stable argsort) and against torch's sort of the same probabilities, which
is the least that tensor code must do. On a GPU: the plan launched kernel by kernel,
and inside a CUDA graph as tensor operations and as fused kernels, against the sort
alone. Contenders take turns in random order, round by round, so that a change of the
machine's speed meets them all; the ratio is the result, the time its illustration.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evict_profile.cost_model import ForwardCost, HingeCost, Shape, Term
from evict_profile.io import data_root
from evict_profile.runtime import Plan, Truncator, select_widths
from evict_profile.stats import Floats, MedianInterval, median_interval
from evict_profile.table import ActivationCurve, CostTable, Staircase

BATCHES = (1, 16, 64, 256)
NODES = (16, 60, 256, 1024)
CONTEXT = 2048
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


def time_decisions(progress: Callable[[str], None] | None) -> list[dict[str, Any]]:
    """Time all contenders at every size, on the CPU and on a GPU where there is one.

    Returns:
        The fields of `Timing` for each, JSON-able.
    """
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    timings: list[Timing] = []
    for device, batch, nodes in product(devices, BATCHES, NODES):
        if progress:
            progress(f"decision on {device}, batch {batch} x {nodes} nodes")
        timings.extend(time_size(torch.device(device), batch, nodes, ROUNDS))
    return [asdict(timing) for timing in timings]


def time_size(
    device: torch.device, batch: int, nodes: int, rounds: int
) -> Iterator[Timing]:
    """Time the contenders of one device at one size."""
    drafts = random_drafts(batch, nodes).to(device)
    contenders = _on_gpu(drafts) if device.type == "cuda" else _on_cpu(drafts)
    settle = torch.cuda.synchronize if device.type == "cuda" else _nothing
    for what, found in take_turns(contenders, settle, rounds).items():
        interval = (found.median, found.low, found.high)
        yield Timing(device.type, batch, nodes, what, *interval)


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


def made_up_table(batch: int, nodes: int) -> CostTable:
    """A table over every size that is timed; its prices matter to no time."""
    most = batch * (nodes + 1)
    cost = ForwardCost(
        Shape(top_k=8, sliding_window=0, sliding_every=1),
        HingeCost(
            (Term("one"), Term("union"), Term("tokens")), np.array([90, 1.5, 0.2])
        ),
        HingeCost((Term("one"),), np.array([40.0])),
        layer_scale=48.0,
    )
    tokens = np.arange(most + 1.0)
    union = 128.0 * (1.0 - (1.0 - 8 / 128) ** tokens)
    price_us = tuple(cost.price(tokens, union, CONTEXT, batch).tolist())
    shipped = sorted((data_root() / "cost_tables").glob("*/*/*/*.json"))[0]
    base = CostTable.load(shipped)
    domain = {
        **base.fit.domain,
        "batch": (batch, batch),
        "context": (CONTEXT, CONTEXT),
        "tokens": (1, most),
        "width": (1, nodes + 1),
    }
    return replace(
        base,
        fit=replace(base.fit, domain=domain),
        axes=replace(base.axes, ladder=()),
        staircases=(Staircase(batch, CONTEXT, price_us, price_us, price_us),),
        activation=ActivationCurve("none", True, tuple(union.tolist())),
        drafting=None,
    )


def _truncator(batch: int, nodes: int, allocation: Any) -> Truncator:
    table = made_up_table(batch, nodes)
    words: dict[str, Any] = {"drafts": "topk", "acceptance": "target-only"}
    return Truncator(table, allocation=allocation, **words)


def _on_cpu(drafts: Tensor) -> dict[str, Call]:
    batch, nodes = drafts.shape
    whole, alike = (_truncator(batch, nodes, a) for a in ("batch", "uniform"))
    cost_us = made_up_table(batch, nodes).step_cost_us(batch, CONTEXT)
    flat, array = drafts.reshape(-1), drafts.numpy()
    return {
        "plan, batch": lambda: whole.plan(drafts, CONTEXT),
        "plan, uniform": lambda: alike.plan(drafts, CONTEXT),
        "select_widths": lambda: select_widths(drafts, cost_us),
        "plain numpy": lambda: plain_numpy(array, cost_us),
        "torch.sort": lambda: torch.sort(flat, descending=True),
    }


def _on_gpu(drafts: Tensor) -> dict[str, Call]:
    batch, nodes = drafts.shape
    flat = drafts.reshape(-1)
    contenders: dict[str, Call] = {
        "torch.sort": lambda: torch.sort(flat, descending=True),
        "graph: torch.sort": _graph(lambda: torch.sort(flat, descending=True)),
    }
    for allocation in ("batch", "uniform"):
        truncator = _truncator(batch, nodes, allocation)
        captured = truncator.captured(batch, nodes, drafts.device)
        planned = truncator.price(captured, CONTEXT)
        captured.path_prob.copy_(drafts)
        captured.run()
        _require_the_same(planned, truncator.plan(drafts.cpu(), CONTEXT))
        contenders[f"graph: tensor operations, {allocation}"] = _graph(captured.run)
        contenders[f"plan, {allocation}"] = _bound(truncator.plan, drafts)
    return contenders


def _require_the_same(there: Plan, here: Plan) -> None:
    """A fast wrong decision is worth no time: check it before it is timed.

    Raises:
        RuntimeError: a device's plan has another throughput than the CPU's.
    """
    ours, theirs = (
        float(plan.expected_tokens) / float(plan.step_cost_us) for plan in (there, here)
    )
    if not math.isclose(ours, theirs, rel_tol=1e-9):
        raise RuntimeError(f"a device decides {there}, and the CPU {here}")


def _bound(plan: Callable[[Tensor, float], object], drafts: Tensor) -> Call:
    return lambda: plan(drafts, CONTEXT)


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


def _nothing() -> None:
    """A CPU has done what it was asked to when a call returns."""
