"""What routing within an expert budget adds to a verification.

    python benchmarks/budget_overhead.py --world worlds/stdlib --out overhead.json
    python benchmarks/budget_overhead.py --model qwen3-30b-a3b --layers 8 --tokens 32 \
        --tokens 64 --context 2048 --out overhead.json

A model routes anyhow, so what counts is the time beyond its own routers, over all
layers, as a share of one whole forward of the same tokens. It is taken twice, for both
rankings and modes.

*alone*: the routers of all layers, one after the other, without what lies between. On a
GPU eagerly and as a captured graph.
*in place*, on a CPU: in each layer of a real forward both routers run, in turns first,
each under its own clock, and the model's own is obeyed. Caches are then as the experts
leave them, and everything is slower than alone. The row `own` compares the model's
routers with themselves: it shows what such a difference is worth.

Candidates take turns in random order, each round beside the model's own routers;
`added_us` are the median and the quartiles of differences within rounds. CPU: process
CPU time, one thread. GPU: wall time of eager runs, device events around graphs.

A world's tokens are held-out text behind more of it; another model has real shapes and
random weights.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from runners.torch_moe.clocks import CudaClock, process_us
from runners.torch_moe.model import MoeLayer, Router
from runners.torch_moe.program import Program, Request
from runners.torch_moe.shape import Noise, read_shape
from runners.torch_moe.stack import Stack
from runners.tree_decoding.clocks import now

WARM_UPS = 3
Run = Callable[[], object]
Time = Callable[[Run], float]
Routed = Callable[[Tensor], tuple[Tensor, Tensor]]


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
class Forward:
    """A whole verification, and the layers whose routers it runs."""

    layers: Sequence[MoeLayer]
    run: Run
    in_graph: bool = False


class Both:
    """A layer's own router and another, under two clocks; the own one is obeyed."""

    def __init__(self, own: Router, other: Routed, first: bool) -> None:
        self.own, self.other, self.first = own, other, first
        self.own_us = self.other_us = 0.0

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As the layer's own router, which runs first in every second forward."""
        self.first = not self.first
        begun = process_us()
        found = self.own(x) if self.first else self.other(x)
        between = process_us()
        later = self.other(x) if self.first else self.own(x)
        own_us, other_us = between - begun, process_us() - between
        if not self.first:
            found, own_us, other_us = later, other_us, own_us
        self.own_us += own_us
        self.other_us += other_us
        return found


@command
def main(arguments: Sequence[str]) -> None:
    """Measure every number of tokens."""
    options = parse(arguments)
    answer = Answer(options.out, [Path(options.world or options.model)])
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measured = [measure(tokens, options, device) for tokens in options.tokens]
    on_gpu = device.type == "cuda"
    answer.write(
        {
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "torch": torch.__version__,
            "model": options.world or options.model,
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
        names = ("mode", "ranking", "budget", "where")
        name = " ".join(str(row[name]) for name in names if name in row)
        us, low, high = (row["added_us"][part] for part in ("median", "low", "high"))
        yield f"{name}: {us:+.0f} us ({low:.0f}..{high:.0f}), {row['share']:+.1%}"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--world", help="folder of a trained world")
    model.add_argument("--model", help="name of a shape in configs/models")
    parser.add_argument("--layers", type=count, default=2, help="of --model")
    parser.add_argument("--tokens", type=count, action="append")
    parser.add_argument("--budget", type=count, action="append")
    parser.add_argument("--context", type=count, default=190)
    parser.add_argument("--rounds", type=count, default=40)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.tokens = options.tokens or [61]
    return options


@torch.inference_mode()
def measure(
    tokens: int, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """The forward of so many tokens, and what each way to route adds to it."""
    if options.world:
        forward = world_forward(options.world, tokens, options.context, device)
    else:
        forward = model_forward(
            options.model, options.layers, tokens, options.context, device
        )
    clock = clock_of(device, forward.in_graph)
    moe = forward.layers[0].router.moe
    usual = (moe.num_experts // part for part in (8, 4, 2))
    budgets = options.budget or [budget for budget in usual if budget >= moe.top_k]
    for budget in budgets:
        check(moe.top_k, budget, moe.num_experts)
    ways = [Budgeted(*way) for way in product(MODES, RANKINGS, budgets)]
    times = [clock(forward.run) for _ in range(WARM_UPS + options.rounds)]
    whole = spread(times[WARM_UPS:])
    rows = alone(forward, ways, tokens, options.rounds)
    if device.type == "cpu":
        rows += in_place(forward, ways, options.rounds)
    layers = len(forward.layers)
    for found in rows:
        added_us = found["added_us"]["median"]
        found["added_layer_us"] = round(added_us / layers, 2)
        found["share"] = round(added_us / whole["median"], 5)
    return {
        "tokens": tokens,
        "experts": moe.num_experts,
        "top_k": moe.top_k,
        "layers": layers,
        "forward_us": whole,
        "rows": rows,
    }


def alone(
    forward: Forward, ways: Sequence[Budgeted], tokens: int, rounds: int
) -> list[dict[str, Any]]:
    """Rows of routers without what lies between them, all on the same input."""
    routers = [layer.router for layer in forward.layers]
    x = inputs(routers[0], tokens)
    own = over_all(routers, x)
    others = [over_all([way.over(r) for r in routers], x) for way in ways]
    kinds = ("eager", "graph") if x.is_cuda else ("eager",)
    rows = []
    for kind in kinds:
        runs = [own, *others]
        if kind == "graph":
            runs = [captured(run) for run in runs]
        times = in_turns(runs, rounds, clock_of(x.device, kind == "graph"))
        for index, way in enumerate(ways, start=1):
            added_us = np.subtract(times[index], times[0])
            rows.append(row(way, f"alone, {kind}", times[0], added_us))
    return rows


def over_all(routers: Sequence[Routed], x: Tensor) -> Run:
    """Routers, one after the other."""
    return lambda: [router(x) for router in routers]


def in_turns(runs: Sequence[Run], rounds: int, clock: Time) -> list[list[float]]:
    """Times of each; every round runs all of them, in an order of its own."""
    times: list[list[float]] = [[] for _ in runs]
    shuffle = random.Random(0)
    for number in range(WARM_UPS + rounds):
        for index in shuffle.sample(range(len(runs)), len(runs)):
            us = clock(runs[index])
            if number >= WARM_UPS:
                times[index].append(us)
    return times


def in_place(
    forward: Forward, ways: Sequence[Budgeted], rounds: int
) -> list[dict[str, Any]]:
    """Rows of routers that run in every layer of a forward beside its own."""
    own = [layer.router for layer in forward.layers]
    others: list[list[Routed]] = [list(own)]
    others += [[way.over(router) for router in own] for way in ways]
    found: list[list[tuple[float, float]]] = [[] for _ in others]
    shuffle = random.Random(0)
    for number in range(WARM_UPS + rounds):
        for index in shuffle.sample(range(len(others)), len(others)):
            us = both(forward, own, others[index], number)
            if number >= WARM_UPS:
                found[index].append(us)
    rows = []
    for way, pairs in zip([None, *ways], found, strict=True):
        own_us, other_us = np.array(pairs).T
        rows.append(row(way, "in place", own_us, other_us - own_us))
    return rows


def both(
    forward: Forward, own: Sequence[Router], other: Sequence[Routed], number: int
) -> tuple[float, float]:
    """Time of all own routers and of all others in one forward."""
    pairs = [
        Both(router, routed, (number + index) % 2 == 0)
        for index, (router, routed) in enumerate(zip(own, other, strict=True))
    ]
    for layer, pair in zip(forward.layers, pairs, strict=True):
        layer.router = pair
    forward.run()
    for layer, router in zip(forward.layers, own, strict=True):
        layer.router = router
    return sum(p.own_us for p in pairs), sum(p.other_us for p in pairs)


def row(
    way: Budgeted | None, where: str, own_us: Sequence[float], added_us: Sequence[float]
) -> dict[str, Any]:
    """One line of the result."""
    named = {"mode": "own"} if way is None else to_mapping(way)
    return {
        **named,
        "where": where,
        "own_us": spread(own_us),
        "added_us": spread(added_us),
    }


def inputs(router: Router, tokens: int) -> Tensor:
    """Random tokens, as they enter a router."""
    size = (tokens, router.weight.shape[1])
    return torch.randn(size, device=router.weight.device, dtype=router.weight.dtype)


def clock_of(device: torch.device, in_graph: bool) -> Time:
    """Microseconds of one run."""
    if in_graph:
        cuda = CudaClock(device)
        return lambda run: cuda.time(run).clock_us

    def timed(run: Run) -> float:
        begun = now(device)
        run()
        return (now(device) - begun).us

    return timed


def world_forward(
    folder: str, tokens: int, context: int, device: torch.device
) -> Forward:
    """The small world's target reads held-out text, its last tokens in one forward."""
    # Here, because a GPU machine need not have what checkpoints are stored with.
    from runners.tree_decoding.checkpoint import open_checkpoint
    from runners.tree_decoding.corpus import HeldOut
    from runners.tree_decoding.layout import CacheSlot, make_layout
    from runners.tree_decoding.verifier import Verifier

    checkpoint = open_checkpoint(folder)
    verifier = Verifier(checkpoint.target, 1, context + tokens, device)
    prose = HeldOut(checkpoint.tokenizer).streams["prose"]
    text = prose[: context + tokens].long().to(device)
    verifier.read(text[:context])
    layout = make_layout([CacheSlot.chain(0, context, tokens)], verifier.cache)
    ids = text[context:]
    return Forward(verifier.stack.moe, lambda: verifier.verify(ids, layout))


def model_forward(
    name: str, layers: int, tokens: int, context: int, device: torch.device
) -> Forward:
    """Layers of a model's shape, on random input; a captured graph on a GPU."""
    shape = read_shape(to_mapping(load_model(name)), layers)
    if shape.moe.router != "softmax":
        raise ConfigError(f"{name}: its router is not a softmax; choose another model")
    stack = Stack(shape, (1, context + tokens), Noise(device, shape.dtype, 0))
    cell = ("layers", tokens, 0, context, 1, "natural")
    request = Request(*cell, tier=tokens, layers=layers)
    program = Program(stack, shape, request, device)
    program.load(request, seed=0)
    on_gpu = device.type == "cuda"
    if on_gpu:
        program.capture(torch.cuda.Stream(), None)
    return Forward(stack.moe, program.run, in_graph=on_gpu)


def captured(run: Run) -> Run:
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
