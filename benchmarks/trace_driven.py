"""What would truncation earn on a model that is too large to be trained here?

    python benchmarks/trace_driven.py TRACES --table TABLE --model qwen3-30b-a3b \
        --world-table WORLD_TABLE --device cuda

Policies are simulated on a trace as `evict-profile replay` does, but each step is
charged a forward of the large model's shape that ran: real kernels and clocks, with
acceptance and routing patterns of the trace. Policies decide with the large model's
table, into which acceptance and activation are put from prompts that are not judged.
What comes out is what this model would see *if* its drafter and its router behaved as
the small world's.

*Unions.* Neighbours in a tree route alike, so their union stays behind uniform
routing's. By how much is what is carried over: U / U_uniform(n) of the trace, times
U_uniform(n) of the large model.
*Forwards.* One is measured for each (width, union on a grid, batch), with a few draws
of experts and trees, and charged at its median. The fixed policies are chosen in
hindsight on the same forwards, so what noise those have flatters them.
*Drafting* is charged as a share of a plain step a level: `--draft-share`, or as it was
in the trace's own world, from its calibrated table (`--world-table`). The rest of a
step (acceptance, host) is not charged.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import Answer, amount, command, count, restart_on_one_thread
from evict_profile.calibrate.acceptance import nodes_of, per_rank_acceptance
from evict_profile.calibrate.activation import (
    Activation,
    Activations,
    as_activation_curve,
    measure_activation,
)
from evict_profile.calibrate.study import as_acceptance, calibrate, workload_name
from evict_profile.config import ModelSpec, load_model
from evict_profile.config.model import uniform_union
from evict_profile.errors import ConfigError, TraceError
from evict_profile.fit.export import with_workload
from evict_profile.io import finite, parse_share
from evict_profile.records import Facts, differences, replace, to_mapping
from evict_profile.replay.compare import Comparison, Scenario, ScenarioReplay, parts
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import AR, BEST_PAIR
from evict_profile.replay.simulate import StepPrices
from evict_profile.runtime import CostTable as RuntimeTable
from evict_profile.stats import Estimate, Floats, Ints
from evict_profile.sweep.session import fingerprint
from evict_profile.table import (
    CostTable,
    DraftClock,
    Drafting,
    Key,
    Staircase,
    files_of,
)
from evict_profile.traces import About, Trace, load_traces
from runners.torch_moe.session import Session

Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""What times a cell: `measure` of runners.torch_moe.session."""

ORDERS = 3
SEEDS = (0, 1, 2)
GRID_POINTS = 32
"""Unions are rounded to so many steps from none to all experts."""


@dataclass(frozen=True)
class Carried:
    """Unions of the traced model, carried over to another."""

    about: About
    model: ModelSpec

    def union(self, tokens: Floats, union: Floats) -> Floats:
        """What these unions of so many tokens are there, float64 [places]."""
        experts, top_k = self.about.experts, self.about.top_k
        moe, uniform = self.model.moe, uniform_union(experts, top_k, tokens)
        there = uniform_union(moe.num_experts, moe.top_k, tokens)
        share = np.divide(union, uniform, out=np.zeros_like(there), where=uniform > 0)
        carried: Floats = np.minimum(share * there, moe.num_experts)
        return carried

    def activations(self, found: Activations) -> Activations:
        """Activation by batch, as the table of the other model is to hold it."""
        kept = {batch: self._activation(each) for batch, each in found.kept.items()}
        return replace(found, kept=kept)

    def _activation(self, found: Activation) -> Activation:
        tokens = np.arange(len(found.union), dtype=np.float64)
        union, low, high = (
            np.maximum.accumulate(self.union(tokens, curve))
            for curve in (found.union, found.low, found.high)
        )
        return Activation(union, low, high)


def informed(
    table: CostTable, learn: Trace, context: int, draft_share: float
) -> CostTable:
    """The large model's table with what a trace tells of drafter, router and drafting.

    Raises:
        TraceError: the trace holds no routes, or has too few prompts.
    """
    found = measure_activation(learn)
    if found is None:
        raise TraceError("this trace holds no routes; record them")
    name = workload_name(learn)
    acceptance = as_acceptance(
        calibrate(nodes_of(learn.replies)),
        name,
        len(learn.steps),
        per_rank_acceptance(learn.steps, learn.about.topk),
    )
    carried = Carried(learn.about, table.model).activations(found)
    curve = as_activation_curve(carried, name, table.model, table.axes.max_tokens)
    table = with_workload(table, acceptance, curve, None)
    clocks = tuple(
        draft_clock(nearest(table, batch, context), draft_share, learn.about.depth)
        for batch in table.axes.batch
    )
    return replace(table, drafting=Drafting(name, "a share of a plain step", clocks))


def draft_clock(stairs: Staircase, draft_share: float, depth: int) -> DraftClock:
    """Levels at a share of the plain step of this staircase."""
    level_us = draft_share * stairs.step_cost_us[stairs.batch]
    levels = tuple(d * level_us for d in range(depth + 1))
    return DraftClock(stairs.batch, levels, 0.0, 0.0)


def nearest(table: CostTable, batch: int, context: float) -> Staircase:
    """The staircase of the batch and the context that are nearest, in this order."""
    return min(
        table.staircases,
        key=lambda s: (abs(s.batch - batch), abs(s.context - context)),
    )


def share_in(table: CostTable, context: float) -> float:
    """Time of a draft level over that of a plain step, for one request of a world.

    Raises:
        ConfigError: nobody has clocked drafting for this table.
    """
    if table.drafting is None:
        raise ConfigError(
            "--world-table: holds no times of drafting; give the table that "
            "`evict-profile calibrate` has written, or --draft-share"
        )
    clock = min(table.drafting.batches, key=lambda each: each.batch)
    stairs = nearest(table, clock.batch, context)
    plain_us = stairs.step_cost_us[clock.batch] + clock.plain_fixed_us
    return clock.draft_us[-1] / (len(clock.draft_us) - 1) / plain_us


def feasible(model: ModelSpec, tokens: int, union: float) -> int:
    """A union that can be forced: on the grid, and within what tokens can wake."""
    step = max(1, model.moe.num_experts // GRID_POINTS)
    rounded = step * round(union / step)
    return min(max(rounded, model.smallest_union()), model.largest_union(tokens))


@dataclass(frozen=True)
class Forward:
    """One forward's time in microseconds: the median of its draws, and their ends."""

    us: float
    low_us: float
    high_us: float

    @property
    def spread(self) -> float:
        """From the fastest to the slowest draw, over the median."""
        return (self.high_us - self.low_us) / self.us


class Forwards:
    """Forwards of one model at one context, each measured once.

    `found` holds what was measured so far.
    """

    def __init__(
        self, measure: Measure, model: ModelSpec, layers: int, context: int
    ) -> None:
        """`layers`: MoE layers that `measure` runs; their time is scaled to all."""
        self.model = model
        self.found: dict[tuple[int, int, int], Forward] = {}
        self._measure, self._context = measure, context
        self._scale = model.moe_layers / layers
        self._non_moe: dict[tuple[int, int], list[float]] = {}
        self._reference_us = math.nan

    def of(self, tokens: int, union: float, batch: int) -> Forward:
        """The forward of so many tokens of a batch, shared out evenly."""
        width = math.ceil(tokens / batch)
        place = (width, feasible(self.model, width * batch, union), batch)
        if place not in self.found:
            self.found[place] = self._run(*place)
        return self.found[place]

    @property
    def spread(self) -> float:
        """Median spread of the forwards; see `Forward.spread`."""
        return median(forward.spread for forward in self.found.values())

    def _run(self, width: int, union: int, batch: int) -> Forward:
        if (width, batch) not in self._non_moe:
            self._non_moe[width, batch] = self._time("non_moe", width, 0, batch)
        layers = self._time("layers", width, union, batch)
        pairs = zip(layers, self._non_moe[width, batch], strict=True)
        whole = [self._scale * inside + beside for inside, beside in pairs]
        return Forward(median(whole), min(whole), max(whole))

    def _time(self, part: str, width: int, union: int, batch: int) -> list[float]:
        cell = {
            "part": part,
            "width": width,
            "union": union,
            "context": self._context,
            "batch": batch,
            "split": "balanced",
        }
        answer = self._measure({"cell": cell, "seeds": list(SEEDS), "layers": None})
        return [self._at_one_speed(sample) for sample in answer["samples"]]

    def _at_one_speed(self, sample: Mapping[str, float]) -> float:
        """A sample's time, were the machine as fast as at the first."""
        reference_us = sample["reference_us"]
        if math.isnan(reference_us):
            return sample["clock_us"]
        if math.isnan(self._reference_us):
            self._reference_us = reference_us
        return sample["clock_us"] * self._reference_us / reference_us


class MeasuredPrices(StepPrices):
    """Prices of a replay, with forwards that ran in the place of fitted ones."""

    def __init__(
        self,
        table: RuntimeTable,
        arrays: TraceArrays,
        batch: int,
        forwards: Forwards,
        draft_share: float,
    ) -> None:
        """Prices of one batch size.

        Args:
            table: of the model that runs, with its activation curve.
            arrays: the trace.
            batch: requests in lockstep.
            forwards: what runs.
            draft_share: time of a draft level over that of a plain step.

        Raises:
            TraceError: the trace holds no routes to be carried over.
        """
        super().__init__(table, arrays, batch)
        if not arrays.has_routes:
            raise TraceError(
                "this trace holds no routes, so nothing is known of the unions that "
                "are to be carried over; record them"
            )
        self._forwards = forwards
        self._carried = Carried(arrays.trace.about, forwards.model)
        alone = float(self.expected_union(np.array([float(batch)]))[0])
        self._level_us = draft_share * forwards.of(batch, alone, batch).us

    def verify_us(self, tokens: Ints, union: Floats, context: float) -> Floats:
        """The forward as it ran; it saw one context, whatever the step's."""
        there = self._carried.union(tokens.astype(np.float64), union)
        pairs = zip(tokens.tolist(), there.tolist(), strict=True)
        return np.array([self._forwards.of(t, u, self.batch).us for t, u in pairs])

    def draft_us(self, depth: int) -> float:
        """So many levels, all alike."""
        return depth * self._level_us

    def fixed_us(self, depth: int) -> float:
        """Not charged."""
        return 0.0


@dataclass(frozen=True)
class Stage:
    """Where a trace is replayed.

    Attributes:
        table: of the large model, as policies read it.
        forwards: of the large model.
        draft_share: time of a draft level over that of a plain step.
    """

    table: RuntimeTable
    forwards: Forwards
    draft_share: float

    def compare(self, trace: Trace, place: Scenario) -> Comparison:
        """All policies in one place."""
        arrays = TraceArrays(trace)
        replay = ScenarioReplay(arrays, self.table, place, ORDERS)
        replay.prices = MeasuredPrices(
            self.table, arrays, place.batch, self.forwards, self.draft_share
        )
        return replay.compare()


def mean_context(trace: Trace) -> float:
    """Tokens in the KV cache, mean over the steps."""
    return float(np.mean([step.context for step in trace.steps]))


def as_runtime(table: CostTable) -> RuntimeTable:
    """A table as policies read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        table.save(path)
        return RuntimeTable.load(path)


def open_model(
    table: CostTable, options: argparse.Namespace, width: int, context: int
) -> Session:
    """The large model's layers in memory, run as its table was measured."""
    ladder = list(table.axes.ladder)
    widths = ladder or [1, width]
    options = {
        "device": options.device,
        "layers": options.layers,
        "graphs": bool(ladder),
        "ladder": ladder,
        "seed": 0,
        "max_batch": max(options.batch),
        "max_context": context,
        "max_width": max([width, *ladder]),
        "places": [(n, context, batch) for n in widths for batch in options.batch],
    }
    return Session(to_mapping(table.model), options)


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
    return differences(to_mapping(Key.of(facts)), to_mapping(table.key))


def show(cell: Comparison) -> None:
    """Print one place."""
    print(f"\n{cell.scenario}: {cell.tokens} tokens of {cell.prompts} prompts")
    for each in cell.results:
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


def places(trace: Trace, batches: Sequence[int]) -> Iterator[tuple[Trace, Scenario]]:
    """Each workload and the mix, at each batch."""
    for part, workload, temperature in parts(trace):
        for batch in batches:
            yield part, Scenario(workload, temperature, batch)


def drive(options: argparse.Namespace) -> dict[str, Any]:
    """Walk all policies in every place; everything that was found."""
    table, whole = CostTable.load(options.table), load_traces(options.traces)
    if load_model(options.model).name != table.model.name:
        raise ConfigError(
            f"--table prices {table.model.name}, and --model is {options.model}; give "
            "the table of the model that is to run"
        )
    learn = whole.part(*parse_share("--learn", options.learn))
    judge = whole.part(*parse_share("--part", options.part))
    seen = mean_context(judge)
    share = options.draft_share
    if share is None:
        share = share_in(CostTable.load(options.world_table), seen)
    # Policies price at the table's edge what lies outside; so do the forwards.
    low, high = table.fit.domain["context"]
    context = round(min(max(seen, low), high))
    table = informed(table, learn, context, share)
    session = open_model(table, options, judge.about.nodes + 1, context)
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
    for part, place in places(judge, options.batch):
        cells.append(stage.compare(part, place))
        show(cells[-1])
    measured = [
        {"width": n, "union": u, "batch": b, **to_mapping(forward)}
        for (n, u, b), forward in sorted(forwards.found.items())
    ]
    print(f"\n{len(measured)} forwards, median spread {forwards.spread:.1%}")
    return {
        "label": says,
        "table_misses": others,
        "context": context,
        "draft_share": share,
        "cells": [to_mapping(cell) for cell in cells],
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
    options = parser.parse_args(arguments)
    options.batch = options.batch or [1]
    answer = Answer(options.out, inputs_of(options))
    answer.write(finite(drive(options)))


def layers(text: str) -> str | int:
    """What argparse takes for how many layers run."""
    return text if text == "auto" else count(text)


def inputs_of(options: argparse.Namespace) -> list[Path]:
    """Files that are read."""
    tables = [table for table in (options.table, options.world_table) if table]
    beside = [path for table in tables for path in files_of(table)]
    return [options.traces, Path(options.model), *beside]


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
