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
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Answer, amount, command, count, restart_on_one_thread
from benchmarks.forwards import Forwards
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
from evict_profile.records import differences, replace, to_mapping
from evict_profile.replay.compare import Comparison, Scenario, ScenarioReplay, parts
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import AR, BEST_PAIR
from evict_profile.replay.simulate import StepPrices
from evict_profile.stats import Floats, Ints
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

ORDERS = 3


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
        return {batch: self._activation(each) for batch, each in found.items()}

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
    """The large model's table with a trace's drafter, router and drafting."""
    found = measure_activation(learn)
    if found is None:
        raise TraceError("this trace holds no routes; record them")
    name, steps = workload_name(learn), learn.steps
    by_rank = per_rank_acceptance(steps, learn.about.topk)
    acceptance = as_acceptance(
        calibrate(nodes_of(learn.replies)), name, len(steps), by_rank
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
    """Time of a draft level over that of a plain step, for one request of a world."""
    if table.drafting is None:
        raise ConfigError(
            "--world-table: holds no times of drafting; give the table that "
            "`evict-profile calibrate` has written, or --draft-share"
        )
    clock = min(table.drafting.batches, key=lambda each: each.batch)
    stairs = nearest(table, clock.batch, context)
    plain_us = stairs.step_cost_us[clock.batch] + clock.plain_fixed_us
    return clock.draft_us[-1] / (len(clock.draft_us) - 1) / plain_us


class MeasuredPrices(StepPrices):
    """Prices of a replay, with forwards that ran in the place of fitted ones."""

    def __init__(
        self,
        table: CostTable,
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


def compare(
    trace: Trace,
    scenario: Scenario,
    table: CostTable,
    forwards: Forwards,
    draft_share: float,
) -> Comparison:
    """All policies in one scenario, each step charged the forward that ran."""
    arrays = TraceArrays(trace)
    replay = ScenarioReplay(arrays, table, scenario, ORDERS)
    replay.prices = MeasuredPrices(table, arrays, scenario.batch, forwards, draft_share)
    return replay.compare()


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


def show(comparison: Comparison) -> None:
    """Print one scenario."""
    tokens, prompts = comparison.tokens, comparison.prompts
    print(f"\n{comparison.scenario}: {tokens} tokens of {prompts} prompts")
    for each in comparison.results:
        print(
            f"{f'{each.policy} {each.setting}':52} over plain {each.over[AR]}, over "
            f"the best pair {each.over[BEST_PAIR]}; verified "
            f"{each.verified.value:.1f}, "
            f"committed {each.committed.value:.2f}, levels {each.depth.value:.1f}",
            flush=True,
        )


def drive(options: argparse.Namespace) -> dict[str, Any]:
    """Replay all policies in every scenario; everything that was found."""
    table, whole = CostTable.load(options.table), load_traces(options.traces)
    if load_model(options.model).name != table.model.name:
        raise ConfigError(
            f"--table prices {table.model.name}, and --model is {options.model}; give "
            "the table of the model that is to run"
        )
    learn = whole.part(*parse_share("--learn", options.learn))
    judge = whole.part(*parse_share("--part", options.part))
    seen = float(np.mean([step.context for step in judge.steps]))
    share = options.draft_share
    if share is None:
        share = share_in(CostTable.load(options.world_table), seen)
    # Policies price at the table's edge what lies outside; so do the forwards.
    low, high = table.fit.domain["context"]
    context = round(min(max(seen, low), high))
    table = informed(table, learn, context, share)
    session = open_model(table, options, judge.about.nodes + 1, context)
    facts = fingerprint(session.answer_open()["fingerprint"], table.model)
    label = (
        f"trace-driven: acceptance and routing patterns of {judge.about.model}, "
        f"kernels and clocks of {table.model.name} ({facts['layers']} of "
        f"{table.model.moe_layers} MoE layers, {facts['graph_mode']}) on "
        f"{facts['device']}"
    )
    misses = differences(to_mapping(Key.of(facts)), to_mapping(table.key))
    print(f"{label}\na draft level costs {share:.3f} of a plain step", flush=True)
    if misses:
        print(f"note: policies decide with another engine's table: {'; '.join(misses)}")
    layers = session.shape.moe_layers
    forwards, comparisons = Forwards(session.measure, table.model, layers, context), []
    for part, workload, temperature in parts(judge):
        for batch in options.batch:
            scenario = Scenario(workload, temperature, batch)
            comparisons.append(compare(part, scenario, table, forwards, share))
            show(comparisons[-1])
    measured = [
        {"width": n, "union": u, "batch": b, **to_mapping(forward)}
        for (n, u, b), forward in sorted(forwards.found.items())
    ]
    print(f"\n{len(measured)} forwards, median spread {forwards.spread:.1%}")
    return {
        "label": label,
        "table_misses": misses,
        "context": context,
        "draft_share": share,
        "cells": [to_mapping(comparison) for comparison in comparisons],
        "forwards": measured,
    }


@command
def main(arguments: Sequence[str]) -> None:
    """Replay, print, and write all numbers as JSON."""
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
    tables = [table for table in (options.table, options.world_table) if table]
    read = [path for table in tables for path in files_of(table)]
    answer = Answer(options.out, [options.traces, Path(options.model), *read])
    answer.write(finite(drive(options)))


def layers(text: str) -> str | int:
    """What argparse takes for how many layers run."""
    return text if text == "auto" else count(text)


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
