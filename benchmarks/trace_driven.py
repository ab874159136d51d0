"""What would truncation earn on a model that is too large to be trained here?

    python benchmarks/trace_driven.py TRACES --table TABLE --model qwen3-30b-a3b \
        --world-table WORLD_TABLE --device cuda

Policies are walked over a trace as `evict-profile replay` walks them; but each step is
charged a measured forward of the large model's shape: real kernels and clocks, with
acceptance and routing patterns of the trace (benchmarks/carried.py says how they are
carried over). Policies decide with the large model's table, into which acceptance and
growth are put from prompts that are not judged. What comes out is what this model would
see *if* its drafter and its router behaved as the small world's.

The fixed policies are chosen in hindsight on the same measured forwards, so what noise
those have flatters them.

Drafting is charged as a share of a plain step a level: `--draft-share`, or as it was in
the trace's own world, from its calibrated table (`--world-table`).
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.carried import informed, share_in
from benchmarks.command import Answer, amount, command, count, restart_as_runners_run
from benchmarks.measured_prices import Forwards, MeasuredPrices
from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.fingerprint import fingerprint
from evict_profile.io import finite, parse_share
from evict_profile.replay.cell import Cell, Place
from evict_profile.replay.contest import Contest, parts
from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import AR, BEST_PAIR
from evict_profile.runtime import CostTable as RuntimeTable
from evict_profile.signed import Facts, differences
from evict_profile.stats import Estimate
from evict_profile.table import CostTable, files_of, key_of, load_table, save_table
from evict_profile.traces import Trace, load_traces
from runners.torch_moe.session import Session

ORDERS = 3


@dataclass(frozen=True)
class Stage:
    """Where a trace is walked.

    Attributes:
        table: of the large model, as policies read it.
        forwards: of the large model.
        draft_share: time of a draft level over that of a plain step.
    """

    table: RuntimeTable
    forwards: Forwards
    draft_share: float

    def cell(self, trace: Trace, place: Place) -> Cell:
        """All policies in one place."""
        ground = Ground(trace)
        contest = Contest(ground, self.table, place, ORDERS)
        contest.prices = MeasuredPrices(
            self.table, ground, place.batch, self.forwards, self.draft_share
        )
        return contest.cell()


def mean_context(trace: Trace) -> float:
    """Tokens in the KV cache, mean over the steps."""
    return float(np.mean([step.context for step in trace.steps]))


def as_runtime(table: CostTable) -> RuntimeTable:
    """A table as policies read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        save_table(table, path)
        return RuntimeTable.load(path)


def open_model(
    table: CostTable, asked: argparse.Namespace, width: int, context: int
) -> Session:
    """The large model's layers in memory, run as its table was measured."""
    ladder = list(table.axes.ladder)
    widths = ladder or [1, width]
    options = {
        "device": asked.device,
        "layers": asked.layers,
        "graphs": bool(ladder),
        "ladder": ladder,
        "seed": 0,
        "max_batch": max(asked.batch),
        "max_context": context,
        "max_width": max([width, *ladder]),
        "places": [(n, context, batch) for n in widths for batch in asked.batch],
    }
    return Session(asdict(table.model), options)


def label(trace: Trace, table: CostTable, facts: Facts) -> str:
    """What the numbers are, and what they are not."""
    return (
        f"trace-driven: acceptance and routing patterns of {trace.about.model}, "
        f"kernels and clocks of {table.model.name} ({facts['layers']} of "
        f"{table.model.moe_layers} MoE layers, {facts['graph_mode']}) on "
        f"{facts['device']}"
    )


def misses(table: CostTable, facts: Facts) -> list[str]:
    """How what runs differs from what the table prices."""
    return differences(asdict(key_of(facts)), asdict(table.key))


def show(cell: Cell) -> None:
    """Print one place."""
    print(f"\n{cell.place}: {cell.tokens} tokens of {cell.prompts} prompts")
    for each in cell.standings:
        over, pair = each.over[AR], each.over[BEST_PAIR]
        print(
            f"{f'{each.policy} {each.setting}':52} over plain {told(over)}, over the "
            f"best pair {told(pair)}; verified {each.verified.value:.1f}, committed "
            f"{each.committed.value:.2f}, levels {each.depth.value:.1f}",
            flush=True,
        )


def told(ratio: Estimate) -> str:
    """A ratio with its interval, if it has one."""
    if not ratio.known:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f}..{ratio.high:.3f})"


def places(trace: Trace, batches: Sequence[int]) -> Iterator[tuple[Trace, Place]]:
    """Each workload and the mix, at each batch."""
    for part, workload, temperature in parts(trace):
        for batch in batches:
            yield part, Place(workload, temperature, batch)


def drive(asked: argparse.Namespace) -> dict[str, Any]:
    """Walk all policies in every place; everything that was found."""
    table, whole = load_table(asked.table), load_traces(asked.traces)
    if load_model(asked.model).name != table.model.name:
        raise ConfigError(
            f"--table prices {table.model.name}, and --model is {asked.model}; give "
            "the table of the model that is to run"
        )
    learn = whole.part(*parse_share("--learn", asked.learn))
    judge = whole.part(*parse_share("--part", asked.part))
    seen = mean_context(judge)
    share = asked.draft_share
    if share is None:
        share = share_in(load_table(asked.world_table), seen)
    # Policies price at the table's edge what lies outside; so do the forwards.
    low, high = table.fit.domain["context"]
    context = round(min(max(seen, low), high))
    table = informed(table, learn, context, share)
    session = open_model(table, asked, judge.about.nodes + 1, context)
    facts = fingerprint(session.answer_open()["fingerprint"], table.model)
    says, others = label(judge, table, facts), misses(table, facts)
    print(f"{says}\na draft level costs {share:.3f} of a plain step", flush=True)
    if others:
        print(
            f"note: policies decide with a table of another engine: {'; '.join(others)}"
        )
    layers = session.shape.moe_layers
    forwards = Forwards(session.measure, table.model, layers, context)
    stage, cells = Stage(as_runtime(table), forwards, share), []
    for part, place in places(judge, asked.batch):
        cells.append(stage.cell(part, place))
        show(cells[-1])
    measured = [
        {"width": n, "union": u, "batch": b, **asdict(forward)}
        for (n, u, b), forward in sorted(forwards.found.items())
    ]
    print(f"\n{len(measured)} forwards, median spread {forwards.spread:.1%}")
    return {
        "label": says,
        "table_misses": others,
        "context": context,
        "draft_share": share,
        "cells": [asdict(cell) for cell in cells],
        "forwards": measured,
    }


@command
def main(arguments: Sequence[str]) -> None:
    """Walk, print, and write all numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--table", type=Path, required=True, help="of --model")
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--layers", type=layers, default="auto", help="MoE layers to run"
    )
    drafting = parser.add_mutually_exclusive_group(required=True)
    drafting.add_argument("--draft-share", type=amount, help="of a plain step, a level")
    drafting.add_argument("--world-table", type=Path, help="of the traced world")
    parser.add_argument("--learn", default="1/2", help="prompts to calibrate on")
    parser.add_argument("--part", default="2/2", help="prompts to judge on")
    parser.add_argument("--batch", type=count, action="append")
    parser.add_argument("--out", type=Path, default=Path("trace_driven.json"))
    asked = parser.parse_args(arguments)
    asked.batch = asked.batch or [1]
    answer = Answer(asked.out, inputs_of(asked))
    answer.write(finite(drive(asked)))


def layers(text: str) -> str | int:
    """What argparse takes for how many layers run."""
    return text if text == "auto" else count(text)


def inputs_of(asked: argparse.Namespace) -> list[Path]:
    """Files that are read."""
    tables = [table for table in (asked.table, asked.world_table) if table]
    beside = [path for table in tables for path in files_of(table)]
    return [asked.traces, Path(asked.model), *beside]


if __name__ == "__main__":
    restart_as_runners_run()
    sys.exit(main(sys.argv[1:]))
