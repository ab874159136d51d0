"""Chains cut by a table beside SGLang's adaptive steps, replayed and measured.

    python -m examples.small_world trace WORLD --out TRACES --topk 1 --depth 7 --nodes 7
    evict-profile calibrate TABLE.json TRACES --part 1/2
    SGLANG_PYTHON -m benchmarks.adaptive_steps TABLE.json WORLD TRACES --part 2/2

The small world's engine decodes the traced replies under each policy, in turns of a few
steps (`examples.small_world.wall_clock`). SGLang's policy is its own class with its
default candidates: a moving average of accepted drafts moves the steps of a batch. The
plug-in's drafts all levels and cuts them. It prints tokens a second over plain decoding
and over the best fixed setting.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.common import command, count
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    RATE,
    Fixed,
    Guided,
    MakePolicy,
    PolicyStep,
)
from evict_profile.table import CostTable
from examples.small_world.wall_clock import (
    Asked,
    check,
    open_trace,
    policies_of,
    scenarios,
    show,
)

ADAPTIVE = "SGLang's adaptive steps"


class AdaptiveSteps:
    """SGLang's adaptive speculation: it moves all requests' steps after a step."""

    name = ADAPTIVE

    def __init__(self, depth: int) -> None:
        from sglang.srt.speculative.adaptive_spec_params import (
            AdaptiveSpeculativeParams,
        )

        self.depth, self._batch = depth, 1
        self._params = AdaptiveSpeculativeParams(initial_steps=depth)

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        self._batch = batch
        steps = min(self._params.get_steps_for_batch(batch), self.depth)
        return Fixed("", steps, steps + 1).begin(batch, context, nodes)

    def observe(self, committed: int, step_us: float) -> None:
        accepted = (committed - self._batch) / self._batch
        self._params.on_verify_complete([accepted], self._batch)


def policies(replay: ScenarioReplay) -> dict[str, MakePolicy]:
    """Settings without a cost, the runtime's policies, and both ways of adapting."""
    depth = replay.arrays.depth
    return {
        **policies_of(replay, contenders=True),
        ADAPTIVE: partial(AdaptiveSteps, depth),
        **{
            f"cut by the table, {levels} levels": partial(
                Guided, RATE, levels, replay.table
            )
            for levels in range(3, depth + 1, 2)
        },
    }


@command
def main(arguments: Sequence[str]) -> None:
    asked = parse(arguments)
    table, (trace, session) = CostTable.load(asked.table), open_trace(asked)
    for part, scenario in scenarios(trace, asked):
        replay = ScenarioReplay(TraceArrays(part), table, scenario, 1)
        rows = check(session, replay, policies(replay), asked.prompts)
        show(Console(width=160), scenario, rows)


def parse(arguments: Sequence[str]) -> Asked:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    for name in ("table", "world", "traces"):
        add(name, type=Path)
    add("--part", default="1/1")
    add("--prompts", type=count, default=24, help="that it was traced with")
    add("--batch", type=count, action="append", dest="batches", help="repeatable")
    add("--workload", action="append", dest="workloads", help="repeatable")
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v}
    return Asked(**given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
