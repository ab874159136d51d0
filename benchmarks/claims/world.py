"""A recording of the small world, and the cost table that its replays take.

What is calibrated on one half of the prompts is judged on the other. Costs are those of
the shipped table, measured on a quiet machine. Every study takes the same `SEEDS`
orders of replies and resamples of prompts, so that ratios lose most of their spread.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from evict_profile.calibrate.activation import as_activation_curve, measure_activation
from evict_profile.calibrate.study import as_acceptance, calibrate, workload_name
from evict_profile.fit.export import with_workload
from evict_profile.io import data_root
from evict_profile.records import replace as changed
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.table import CostTable
from evict_profile.traces import Trace, load_traces

SEEDS = 5
HALVES = 2
TABLES = data_root() / "examples/small_world/cost_tables"
XEON = (
    TABLES / "intel-xeon-processor-amx-bf16/small-world-9.04m/tree-decoding/1.0.3.json"
)
EVICT_DEPTH, EVICT_NODES = 4, 31
"""EVICT's setting under SGLang: 4 steps, 32 tokens with the root."""


@dataclass(frozen=True)
class World:
    """Draft trees of one temperature, and a table without their workload."""

    whole: Trace
    base: CostTable

    @classmethod
    def load(cls, folder: Path, temperature: float) -> "World":
        trace = load_traces(folder).only(temperatures=[temperature])
        return cls(trace, CostTable.load(XEON))

    @property
    def temperature(self) -> float:
        return self.whole.temperatures[0]

    @cached_property
    def table(self) -> CostTable:
        """Calibrated on the first half of the prompts."""
        own, base = self.of(half=0), self.base
        found = measure_activation(own)
        assert found, "the recording has routes"
        kept = {batch: each.union for batch, each in found.items()}
        name, most = workload_name(own), base.axes.max_tokens
        curve = as_activation_curve(kept, name, base.model, most)
        acceptance = as_acceptance(calibrate(own), name, len(own))
        return with_workload(base, acceptance, curve, None)

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
        depth: int = 0,
        nodes: int = 0,
    ) -> ScenarioReplay:
        """A replay of judged prompts; `depth` and `nodes` make trees smaller."""
        trace = self.of(workload, half)
        deep, most = depth or trace.about.depth, nodes or trace.about.nodes
        cut = replace(trace, about=replace(trace.about, depth=deep, nodes=most))
        scenario = Scenario(workload, self.temperature, batch)
        return ScenarioReplay(TraceArrays(cut), self.table, scenario, SEEDS)


def raw(table: CostTable) -> CostTable:
    """The table without calibration: rules take the drafter's probabilities."""
    return changed(table, acceptance=None)
