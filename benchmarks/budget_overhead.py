"""What routing within an expert budget adds to a verification.

    python benchmarks/budget_overhead.py --model qwen3-30b-a3b --layers 8 --tokens 32 \
        --tokens 64 --context 2048 --out overhead.json

A model routes anyhow, so what counts is the time beyond its own routers, over all
layers, as a share of one whole forward of the same tokens. Shapes are real, weights
random. The routers of all layers run one after the other, without what lies between:
eagerly, and on a GPU as a captured graph too.

Ways to route take turns in random order, each round beside the model's own routers;
`added_us` are the median and the quartiles of differences within rounds. The row `own`
compares the model's routers with themselves: it shows what such a difference is worth.
CPU: process CPU time, one thread. GPU: wall time of eager runs, device events around
graphs.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Answer, command, count
from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.records import to_mapping
from evict_profile.runtime.budget import MODES, RANKINGS, Mode, Ranking, check, route
from runners.torch_moe.clocks import CudaClock
from runners.torch_moe.model import MoeLayer, Router
from runners.torch_moe.program import CellRequest, Program
from runners.torch_moe.shape import Noise, read_shape
from runners.torch_moe.stack import Stack
from runners.tree_decoding.clocks import now

WARM_UPS = 3
Run = Callable[[], object]
Time = Callable[[Run], float]
Routed = Callable[[Tensor], tuple[Tensor, Tensor]]
Times = list[tuple[float, float]]
"""Microseconds of a model's own routers and of others, round by round."""


@dataclass(frozen=True)
class Budgeted:
    """A way to route within a budget, as the rows of the result name it."""

    mode: Mode
    ranking: Ranking
    budget: int

    def over(self, router: Router) -> Routed:
        """In the place of a router."""

        def routed(x: Tensor) -> tuple[Tensor, Tensor]:
            weights, ids = route(
                router.scores(x),
                router.moe.top_k,
                self.budget,
                renormalise=True,
                mode=self.mode,
                ranking=self.ranking,
            )
            return ids, weights.to(x.dtype)

        return routed


@dataclass(frozen=True)
class RoutedForward:
    """A whole verification, and the layers whose routers it runs."""

    layers: Sequence[MoeLayer]
    run: Run

    @property
    def routers(self) -> list[Router]:
        """The model's own, one a layer."""
        return [layer.router for layer in self.layers]


@command
def main(arguments: Sequence[str]) -> None:
    """Measure every number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="name of a model config")
    parser.add_argument("--layers", type=count, default=2)
    parser.add_argument("--tokens", type=count, action="append")
    parser.add_argument("--budget", type=count, action="append")
    parser.add_argument("--context", type=count, default=190)
    parser.add_argument("--rounds", type=count, default=40)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    answer = Answer(options.out, [Path(options.model)])
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measured = [measure(n, options, device) for n in options.tokens or [61]]
    on_gpu = device.type == "cuda"
    answer.write(
        {
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "torch": torch.__version__,
            "model": options.model,
            "context": options.context,
            "rounds": options.rounds,
            "measured": measured,
        }
    )
    for forward in measured:
        print("\n".join(lines(forward)))


def lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """A line for the forward, and one for each way to route in it."""
    forward_us = measured["forward_us"]["median"]
    yield f"{measured['tokens']} tokens: a verification takes {forward_us / 1e3:.2f} ms"
    for row in measured["rows"]:
        names = ("mode", "ranking", "budget", "kind")
        name = " ".join(str(row[name]) for name in names if name in row)
        us, low, high = (row["added_us"][part] for part in ("median", "low", "high"))
        yield f"{name}: {us:+.0f} us ({low:.0f}..{high:.0f}), {row['share']:+.1%}"


@torch.inference_mode()
def measure(
    tokens: int, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """The forward of so many tokens, and what each way to route adds to it."""
    forward = open_forward(
        options.model, options.layers, tokens, options.context, device
    )
    moe = forward.routers[0].moe
    usual = (moe.num_experts // part for part in (8, 4, 2))
    budgets = options.budget or [budget for budget in usual if budget >= moe.top_k]
    for budget in budgets:
        check(moe.top_k, budget, moe.num_experts)
    ways = [Budgeted(*way) for way in product(MODES, RANKINGS, budgets)]
    clock = clock_of(device, captured=device.type == "cuda")
    times = [clock(forward.run) for _ in range(WARM_UPS + options.rounds)]
    whole = spread(times[WARM_UPS:])
    kinds = ("eager", "graph") if device.type == "cuda" else ("eager",)
    found = {k: alone(forward, ways, tokens, options.rounds, k) for k in kinds}
    rows = [
        row(way, kind, pairs, whole["median"])
        for kind, by_way in found.items()
        for way, pairs in zip([None, *ways], by_way, strict=True)
    ]
    return {
        "tokens": tokens,
        "experts": moe.num_experts,
        "top_k": moe.top_k,
        "layers": len(forward.layers),
        "forward_us": whole,
        "rows": rows,
    }


def alone(
    forward: RoutedForward,
    ways: Sequence[Budgeted],
    tokens: int,
    rounds: int,
    kind: str,
) -> list[Times]:
    """Routers without what lies between them, all on the same input."""
    routers = forward.routers
    weight = routers[0].weight
    size = (tokens, weight.shape[1])
    x = torch.randn(size, device=weight.device, dtype=weight.dtype)

    def over_all(routed: Sequence[Routed]) -> Run:
        return lambda: [each(x) for each in routed]

    runs = [over_all(routers), over_all(routers)]
    runs += [over_all([way.over(router) for router in routers]) for way in ways]
    if kind == "graph":
        runs = [capture(run) for run in runs]
    clock = clock_of(x.device, captured=kind == "graph")
    times: list[list[float]] = [[] for _ in runs]
    shuffle = random.Random(0)
    for number in range(WARM_UPS + rounds):
        for index in shuffle.sample(range(len(runs)), len(runs)):
            us = clock(runs[index])
            if number >= WARM_UPS:
                times[index].append(us)
    own, *others = times
    return [list(zip(own, other, strict=True)) for other in others]


def row(
    way: Budgeted | None, kind: str, pairs: Times, forward_us: float
) -> dict[str, Any]:
    """One line of the result."""
    own_us, other_us = np.array(pairs).T
    added_us = spread(other_us - own_us)
    return {
        **({"mode": "own"} if way is None else asdict(way)),
        "kind": kind,
        "own_us": spread(own_us),
        "added_us": added_us,
        "share": round(added_us["median"] / forward_us, 5),
    }


def clock_of(device: torch.device, captured: bool) -> Time:
    """Microseconds of one run."""
    if captured:
        cuda = CudaClock(device)
        return lambda run: cuda.time(run).clock_us

    def timed(run: Run) -> float:
        begun = now(device)
        run()
        return (now(device) - begun).us

    return timed


def open_forward(
    name: str, layers: int, tokens: int, context: int, device: torch.device
) -> RoutedForward:
    """Layers of a model's shape, on random input; a captured graph on a GPU."""
    shape = read_shape(to_mapping(load_model(name)), layers)
    if shape.moe.router != "softmax":
        raise ConfigError(f"{name}: its router is not a softmax; choose another model")
    stack = Stack(shape, (1, context + tokens), Noise(device, shape.dtype, 0))
    cell = ("layers", tokens, 0, context, 1, "natural")
    request = CellRequest(*cell, tier=tokens, layers=layers)
    program = Program(stack, request, device)
    program.load(request, seed=0)
    if device.type == "cuda":
        program.capture(torch.cuda.Stream(), None)
    return RoutedForward(stack.moe, program.run)


def capture(run: Run) -> Run:
    """The replay of a CUDA graph of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.percentile(values, [25, 50, 75]).round(1).tolist()
    return {"median": median, "low": low, "high": high}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
