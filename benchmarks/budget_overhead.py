"""What routing within an expert budget adds to a verification.

    python benchmarks/budget_overhead.py --world worlds/stdlib --out overhead.json
    python benchmarks/budget_overhead.py --model qwen3-30b-a3b --layers 8 --tokens 32 \
        --tokens 64 --context 2048 --out overhead.json

A model routes anyhow, so what counts is the time beyond its own routers, over all
layers, as a share of one whole forward of the same tokens. It is taken twice, for both
rankings and modes.

*alone*: the routers of all layers, one after the other, without what lies between.
On a GPU eagerly and as a captured graph, in tensor operations and in Triton kernels;
unless both route alike there, nothing is reported.
*in place*, on a CPU: in each layer of a real forward both routers run, in turns first,
each under its own clock, and the model's own is obeyed. Caches are then as the experts
leave them, and everything is slower than alone. The row `own` compares the model's
routers with themselves: it shows what such a difference is worth.

Candidates take turns in random order, each round beside the model's own routers;
`added_us` are the median and the quartiles of differences within rounds. CPU: process
CPU time, one thread. GPU: wall time of eager runs, device events around graphs.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.budget_ways import (
    TENSORS,
    TRITON,
    Budgeted,
    Disagreement,
    Routed,
    disagreements,
    inputs,
)
from benchmarks.command import Answer, command, count
from benchmarks.routed_forwards import (
    WARM_UPS,
    Forward,
    Run,
    Time,
    captured,
    clock_of,
    model_forward,
    world_forward,
)
from evict_profile.runtime.budget import MODES, RANKINGS, check
from runners.torch_moe.clocks import process_us
from runners.torch_moe.model import Router


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
def main(arguments: Sequence[str]) -> int:
    """Measure every number of tokens; exit code 1 if kernels route otherwise."""
    asked = parse(arguments)
    answer = Answer(asked.out, [Path(asked.world or asked.model)])
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    try:
        measured = [measure(tokens, asked, device) for tokens in asked.tokens]
    except Disagreement as error:
        print(f"CHECK FAILED: {error}", file=sys.stderr)
        return 1
    found = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "model": asked.world or asked.model,
        "context": asked.context,
        "rounds": asked.rounds,
        "measured": measured,
    }
    answer.write(found)
    for each in measured:
        print("\n".join(told(each)))
    print(f"numbers: {asked.out}")
    return 0


def told(measured: Mapping[str, Any]) -> Iterator[str]:
    """A line for the forward, and one for each way to route in it."""
    forward_us = measured["forward_us"]["median"]
    yield f"{measured['tokens']} tokens: a verification takes {forward_us / 1e3:.2f} ms"
    for row in measured["rows"]:
        names = ("path", "mode", "ranking", "budget", "where")
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
    asked = parser.parse_args(arguments)
    asked.tokens = asked.tokens or [61]
    return asked


@torch.inference_mode()
def measure(
    tokens: int, asked: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """The forward of so many tokens, and what each way to route adds to it."""
    if asked.world:
        forward = world_forward(asked.world, tokens, asked.context, device)
    else:
        forward = model_forward(
            asked.model, asked.layers, tokens, asked.context, device
        )
    clock = clock_of(device, forward.in_graph)
    moe = forward.layers[0].router.moe
    paths = (TENSORS, TRITON) if device.type == "cuda" else (TENSORS,)
    usual = (moe.num_experts // part for part in (8, 4, 2))
    budgets = asked.budget or [budget for budget in usual if budget >= moe.top_k]
    for budget in budgets:
        check(moe.top_k, budget, moe.num_experts)
    ways = [Budgeted(*way) for way in product(paths, MODES, RANKINGS, budgets)]
    if unlike := list(disagreements(forward.layers[0].router, ways, tokens)):
        raise Disagreement(
            f"Triton kernels route {tokens} tokens otherwise than tensor operations "
            f"do: {'; '.join(map(str, unlike))}"
        )
    times = [clock(forward.run) for _ in range(WARM_UPS + asked.rounds)]
    whole = spread(times[WARM_UPS:])
    rows = alone(forward, ways, tokens, asked.rounds)
    if device.type == "cpu":
        rows += in_place(forward, ways, asked.rounds)
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
    named = {"path": "own"} if way is None else asdict(way)
    return {
        **named,
        "where": where,
        "own_us": spread(own_us),
        "added_us": spread(added_us),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.percentile(values, [25, 50, 75]).round(1).tolist()
    return {"median": median, "low": low, "high": high}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
