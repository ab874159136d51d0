"""A whole replay: the verdict on every scenario."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.io import as_json
from evict_profile.records import to_mapping
from evict_profile.replay.compare import ScenarioReplay, parts
from evict_profile.replay.comparison import Comparison, Scenario, summary
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.synthetic import synthetic_trace
from evict_profile.replay.traffic import TrafficReplay
from evict_profile.table import CostTable
from evict_profile.traces import Trace, TraceInfo, load_traces
from evict_profile.traces.trace import check_same_model, check_trees

SCHEMA = "evict-replay/5"


@dataclass(frozen=True)
class ReplayStudy:
    """A comparison by scenario; `dense` if the trace has a tree at every position."""

    table: CostTable
    about: TraceInfo
    dense: bool
    seeds: int
    comparisons: tuple[Comparison, ...]

    @property
    def summary(self) -> str:
        return summary(self.comparisons)

    def as_json(self) -> str:
        """JSON, in which unbounded intervals end in null."""
        table = self.table
        return as_json(
            {
                "schema": SCHEMA,
                "summary": self.summary,
                "table": {"sha256": table.sha256, "key": to_mapping(table.key)},
                "traces": self.about.model,
                "about": to_mapping(self.about),
                "seeds": self.seeds,
                "scenarios": [_scenario(each) for each in self.comparisons],
            }
        )


def _scenario(found: Comparison) -> dict[str, object]:
    verdict = {
        "choice": found.choice,
        "policy": str(found.advised),
        "settled": found.settled,
        "unsettled": found.unsettled,
        "sure": found.sure,
        "break_even": found.break_even,
    }
    return {"verdict": verdict, **to_mapping(found)}


def replay_study(
    trace: Trace,
    table: CostTable,
    batches: Sequence[int],
    seeds: int,
    say: Callable[[str], None],
    traffic: Mapping[int, float] | None = None,
) -> ReplayStudy:
    """Compare policies at each batch; over all of them together in a `traffic`."""
    for batch in batches:
        # Each request verifies its root and, to decide at all, one token more.
        least, most = table.fit.domain["batch"]
        most = min(most, table.max_tokens(batch) // 2)
        if not least <= batch <= most:
            raise ConfigError(
                f"batch {batch} is outside what {table.path} covers, {least}..{most}; "
                "choose one inside, or sweep wider"
            )
    check_same_model(trace.about, table.model)
    check_trees(trace)
    speed = trace.about.speed_on(table.key.engine, table.provenance.reference_us)
    comparisons = []
    for part, workload, temperature in parts(trace):
        arrays = TraceArrays(part)
        at = [Scenario(workload, temperature, batch) for batch in batches]
        replays = [ScenarioReplay(arrays, table, s, seeds, speed) for s in at]
        for replay in [TrafficReplay(replays, traffic)] if traffic else replays:
            say(f"replaying {replay.scenario}: {arrays.tokens} tokens")
            comparisons.append(replay.compare())
    return ReplayStudy(table, trace.about, trace.dense, seeds, tuple(comparisons))


def replayed_trace(
    traces: Path | None,
    synthetic: str,
    table: CostTable,
    workloads: Sequence[str] = (),
    temperatures: Sequence[float] = (),
    part: tuple[int, int] = (0, 1),
) -> Trace:
    if traces:
        trace = load_traces(traces)
    else:
        context = int(table.fit.domain["context"][0])
        trace = synthetic_trace(synthetic, context=context)
    return trace.part(*part).only(workloads, temperatures)
