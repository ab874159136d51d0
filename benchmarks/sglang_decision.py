"""What choosing a width costs a step of SGLang: the copy, the choice, and the wait.

    PYTHONPATH=. SGLANG_PYTHON benchmarks/sglang_decision.py --table TABLE.json \
        --out decision.json

The plug-in's own code, on trees of a planted world that lie on the device. Three times,
medians of many: the copy of all that a decision reads, with nothing else to wait for;
the choice, on the host; both. And what they add to a step: the host must wait for the
draft before it can launch the verification, where without them it would run ahead. So
the same device work, in two pieces, is timed with a decision between them and without,
once back to back as a server without overlap would, and once with more work queued
behind, which a decision holds back. On a CPU there is nothing to copy or to wait for.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Answer, command, count
from benchmarks.sglang_planted.drafting import draft
from benchmarks.sglang_planted.engine import device_name
from benchmarks.sglang_planted.world import Stage, World
from evict_profile.integrations.sglang.decision import Chooser, Host, ladder_of
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.table import CostTable, files_of

ROUNDS = 200
PIECE_US = 1000.0
"""Device work before and after a decision: a draft or a verification takes as long."""


@command
def main(arguments: Sequence[str]) -> int:
    """Time decisions at each batch size of the table."""
    asked = parse(arguments)
    answer = Answer(asked.out, files_of(asked.table))
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = CostTable.load(asked.table)
    ladder = ladder_of(table, asked.draft_tokens, None)
    found = {
        "device": device_name(),
        "torch": torch.__version__,
        "ladder": ladder,
        "us": {
            f"batch {batch}": costs(table, ladder, batch, asked, device)
            for batch in asked.batch
        },
    }
    answer.write(found)
    print(json.dumps(found))
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--batch", type=count, action="append", required=True)
    parser.add_argument("--steps", type=count, default=5)
    parser.add_argument("--topk", type=count, default=8)
    parser.add_argument("--draft-tokens", type=count, default=64)
    parser.add_argument("--context", type=count, default=2048)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


def costs(
    table: CostTable,
    ladder: Sequence[int],
    batch: int,
    asked: argparse.Namespace,
    device: torch.device,
) -> dict[str, float]:
    """Medians in microseconds at one batch size."""
    stage = Stage(World(50_000, asked.topk), batch, asked.steps, device)
    texts = torch.arange(batch, device=device)
    stage.set_scene(texts, texts + asked.context)
    drafted = draft(stage, batch, asked.draft_tokens)
    committed = torch.ones(batch, dtype=torch.int32, device=device)
    host, chooser = Host(), Chooser(table, ladder)

    def fetch() -> Drafted:
        scores, index, parents, _ = host.fetch(
            drafted.path_prob, drafted.index, drafted.parent_list, committed
        )
        return Drafted(parents, index, index, scores, drafted.topk)

    def decide() -> None:
        chooser.choose(fetch(), asked.context)

    fetched = fetch()
    found = {
        "copy": host_us(fetch, device),
        "choice": host_us(lambda: chooser.choose(fetched, asked.context), device),
        "copy_and_choice": host_us(decide, device),
    }
    if device.type == "cuda":
        found |= waits(decide)
    return {name: round(us, 1) for name, us in found.items()}


def host_us(run: Callable[[], object], device: torch.device) -> float:
    """Median host time of a call, with an idle device."""
    times = []
    for _ in range(ROUNDS):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - begun) / 1e3)
    return statistics.median(times)


def waits(decide: Callable[[], None]) -> dict[str, float]:
    """What a decision between two pieces of device work adds to a step."""
    piece = Piece()
    found = {}
    for name, steps in (("one_step", 1), ("eight_steps_queued", 8)):
        alone = piece.time(steps, lambda: None)
        between = piece.time(steps, decide)
        found[f"{name}_without"] = alone
        found[f"{name}_with"] = between
        found[f"{name}_added"] = between - alone
    return found


class Piece:
    """Device work of about PIECE_US, as a captured graph: launching it is cheap."""

    def __init__(self) -> None:
        """Capture enough copies of one product to last that long."""
        self._left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._left)
        for _ in range(3):
            torch.mm(self._left, self._left, out=self._out)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(50):
            torch.mm(self._left, self._left, out=self._out)
        torch.cuda.synchronize()
        each_us = 1e6 * (time.perf_counter() - begun) / 50
        self._graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(max(1, round(PIECE_US / each_us))):
                torch.mm(self._left, self._left, out=self._out)

    def time(self, steps: int, between: Callable[[], None]) -> float:
        """Median time of a step of two pieces, in microseconds."""
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            begun = time.perf_counter_ns()
            for _ in range(steps):
                self._graph.replay()
                between()
                self._graph.replay()
            torch.cuda.synchronize()
            times.append((time.perf_counter_ns() - begun) / 1e3 / steps)
        return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
