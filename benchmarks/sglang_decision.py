"""What choosing a width costs a step of SGLang: the copy, the choice, and the wait.

    PYTHONPATH=. SGLANG_PYTHON benchmarks/sglang_decision.py --table TABLE.json \
        --out decision.json

The plug-in's own code, on trees of a planted world that lie on the device. Four times,
medians of many: the copy of all that a decision reads, with nothing else to wait for;
the choice, on the host; both; and the cut to the nodes chosen. And what they add to a
step: the host must wait for the draft before it can launch the verification, where
without them it would run ahead. So the same device work, in two pieces, is timed with a
decision between them and without, once back to back as a server without overlap would,
and once with more work queued behind, which a decision holds back. On a CPU there is
nothing to copy or to wait for.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.common import Answer, command, count
from benchmarks.sglang_planted.engine import device_name
from benchmarks.sglang_planted.world import PlantedWorld, Stage, draft
from evict_profile.integrations.sglang.decision import Chooser, Host
from evict_profile.integrations.sglang.ladder import ladder_of
from evict_profile.integrations.sglang.tree import HostTrees
from evict_profile.table import CostTable, files_of

ROUNDS = 200
PIECE_US = 1000.0
"""Device work before and after a decision: a draft or a verification takes as long."""


@command
def main(arguments: Sequence[str]) -> None:
    """Time decisions at each batch size of the table."""
    asked = parse(arguments)
    answer = Answer(asked.out, files_of(asked.table))
    torch.set_num_threads(1)
    table = CostTable.load(asked.table)
    ladder = ladder_of(table, asked.draft_tokens, None)
    found = {
        "device": device_name(),
        "torch": torch.__version__,
        "ladder": ladder,
        "us": {
            f"batch {batch}": costs(Chooser(table, ladder), batch, asked)
            for batch in asked.batch
        },
    }
    answer.write(found)
    print(json.dumps(found))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--table", type=Path, required=True)
    add("--batch", type=count, action="append", required=True)
    add("--steps", type=count, default=5)
    add("--topk", type=count, default=8)
    add("--draft-tokens", type=count, default=64)
    add("--context", type=count, default=2048)
    add("--out", type=Path, required=True)
    return parser.parse_args(arguments)


def costs(chooser: Chooser, batch: int, asked: argparse.Namespace) -> dict[str, float]:
    """Medians in microseconds at one batch size."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stage = Stage(PlantedWorld(50_000, asked.topk), batch, asked.steps, device)
    texts = torch.arange(batch, device=device)
    stage.set_scene(texts, texts + asked.context)
    drafted = draft(stage, batch, asked.draft_tokens)
    committed = torch.ones(batch, dtype=torch.int32, device=device)
    host = Host()

    def fetch() -> HostTrees:
        nodes = (drafted.path_prob, drafted.index, drafted.parent_list)
        scores, index, parents, _ = host.fetch(*nodes, committed)
        return HostTrees(scores, index, parents, drafted.topk)

    def decide() -> None:
        chooser.choose(fetch(), asked.context)

    fetched = fetch()
    keep = chooser.choose(fetched, asked.context).plan.keep.numpy()
    found = {
        "copy": median_us(fetch),
        "choice": median_us(lambda: chooser.choose(fetched, asked.context)),
        "copy_and_choice": median_us(decide),
        "cut": median_us(lambda: drafted.kept(keep)),
    }
    if device.type == "cuda":
        found |= waits(decide)
    return {name: round(us, 1) for name, us in found.items()}


def median_us(run: Callable[[], object], ends_on_device: bool = False) -> float:
    """Median host time of a call that begins with an idle device."""
    times = []
    for _ in range(ROUNDS):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        run()
        if ends_on_device:
            torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - begun) / 1e3)
    return median(times)


def waits(decide: Callable[[], None]) -> dict[str, float]:
    """What a decision between two pieces of device work adds to a step."""
    piece, found = Piece(), {}

    def run(steps: int, between: Callable[[], None]) -> None:
        for _ in range(steps):
            piece.run()
            between()
            piece.run()

    for name, steps in (("one_step", 1), ("eight_steps_queued", 8)):
        alone_us = median_us(partial(run, steps, lambda: None), ends_on_device=True)
        with_us = median_us(partial(run, steps, decide), ends_on_device=True)
        found[f"{name}_without"] = alone_us / steps
        found[f"{name}_with"] = with_us / steps
        found[f"{name}_added"] = (with_us - alone_us) / steps
    return found


class Piece:
    """Device work of about PIECE_US, as a captured graph: launching it is cheap."""

    def __init__(self) -> None:
        """Capture enough copies of one product to last that long."""
        self._left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._left)
        self._multiply(3)
        fifty_us = median_us(lambda: self._multiply(50), ends_on_device=True)
        self._graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._multiply(max(1, round(50 * PIECE_US / fifty_us)))

    def run(self) -> None:
        """Launch it."""
        self._graph.replay()

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._left, self._left, out=self._out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
