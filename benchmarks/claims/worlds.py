"""A recording of the small world, and the cost table that its replays take.

What is calibrated on one half of the prompts is judged on the other. Costs are those of
the shipped table, measured on a quiet machine. Every study takes the same `SEEDS`
orders of replies and resamples of prompts, so that ratios lose most of their spread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from evict_profile.calibrate.activation import as_activation_curve, measure_activation
from evict_profile.calibrate.study import as_acceptance, calibrate, workload_name
from evict_profile.fit.export import with_workload
from evict_profile.io import data_root
from evict_profile.records import replace as changed
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import Policy
from evict_profile.replay.sums import COLUMNS, Sums
from evict_profile.stats import Floats
from evict_profile.table import CostTable, Drafting
from evict_profile.traces import Trace, load_traces

SEEDS = 5
HALVES = 2
TABLES = data_root() / "examples/small_world/cost_tables"
XEON, EPYC = (
    TABLES / f"{gpu}/small-world-9.04m/tree-decoding/{version}.json"
    for gpu, version in (
        ("intel-xeon-processor-amx-bf16", "1.0.3"),
        ("amd-epyc-avx512-bf16", "1.0.0"),
    )
)
EVICT_DEPTH, EVICT_NODES = 4, 31
"""EVICT's setting under SGLang: 4 steps, 32 tokens with the root."""


@dataclass(frozen=True)
class World:
    """Draft trees or chains of one temperature; `base` is a table of verification."""

    whole: Trace
    base: CostTable

    @classmethod
    def load(cls, folder: Path, temperature: float = 0.0) -> "World":
        trace = load_traces(folder).only(temperatures=[temperature])
        return cls(trace, CostTable.load(XEON))

    @property
    def temperature(self) -> float:
        return self.whole.temperatures[0]

    def drafting(self, own: Trace) -> Drafting | None:
        """The clocks of chains; of trees, None, for the table has them."""
        if own.about.topk > 1:
            return None
        about = own.about
        speed = self.base.speed_over(about.engine, about.reference_us)
        return Drafting.at_speed(own.clocks, workload_name(own), about.engine, speed)

    @cached_property
    def table(self) -> CostTable:
        """Calibrated on the first half of the prompts."""
        return self.calibrated()

    def calibrated(self, workload: str = MIXED) -> CostTable:
        """Calibrated on the first half of the prompts of a text."""
        own = self.of(workload, half=0)
        name, model = workload_name(own), self.base.model
        found = measure_activation(own)
        assert found, "the recording has routes"
        kept = {batch: each.union for batch, each in found.items()}
        curve = as_activation_curve(kept, name, model, self.base.axes.max_tokens)
        acceptance = as_acceptance(calibrate(own), name, len(own))
        return with_workload(self.base, acceptance, curve, self.drafting(own))

    def of(self, workload: str = MIXED, half: int = 1) -> Trace:
        """The prompts of a text that are judged, or those that calibrate."""
        names = [] if workload == MIXED else [workload]
        return self.whole.part(half, HALVES).only(names)

    def replay(
        self,
        workload: str = MIXED,
        batch: int = 1,
        *,
        half: int = 1,
        table: CostTable | None = None,
        depth: int = 0,
        nodes: int = 0,
    ) -> ScenarioReplay:
        """A replay of judged prompts; `depth` and `nodes` make trees smaller."""
        trace = self.of(workload, half)
        deep, most = depth or trace.about.depth, nodes or trace.about.nodes
        cut = replace(trace, about=replace(trace.about, depth=deep, nodes=most))
        scenario = Scenario(workload, self.temperature, batch)
        return ScenarioReplay(TraceArrays(cut), table or self.table, scenario, SEEDS)


def raw(table: CostTable) -> CostTable:
    """The table without calibration: rules take the drafter's probabilities."""
    return changed(table, acceptance=None)


def sums_of(replay: ScenarioReplay, by_seed: Mapping[int, Policy]) -> Sums:
    """Sums of runs of policies that learnt before; see `ScenarioReplay.sums`."""
    runs = [replay.by_prompt(policy, seed) for seed, policy in by_seed.items()]
    return dict(zip(COLUMNS, replay.bootstrap.sums(np.stack(runs)), strict=True))


Means = Callable[[Sums], Floats]


def mean(column: str) -> Means:
    return lambda sums: sums[column] / sums["requests"]
