"""A whole replay: the verdict on every scenario, and what wrong tables would cost.

Wrong tables are tried where most is known: on all workloads together, at the lowest
temperature.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.io import as_json
from evict_profile.records import to_mapping
from evict_profile.replay.compare import ScenarioReplay, parts
from evict_profile.replay.comparison import Comparison, Scenario, summary
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.wrong_tables import (
    WrongTables,
    shipped_table,
    study_wrong_tables,
    wrong_tables,
)
from evict_profile.table import CostTable
from evict_profile.traces import About, Trace, load_traces
from evict_profile.traces.synthetic import MIXES, synthetic_trace
from evict_profile.traces.trace import check_same_model, check_trees

SCHEMA = "evict-replay/4"


@dataclass(frozen=True)
class ReplayStudy:
    """What a replay found.

    Attributes:
        traces: name of the file, or of a synthetic trace.
        about: what was traced.
        dense: whether the trace has a tree at every position.
        seeds: orders of replies.
        comparisons: one a scenario.
        wrong_tables: one a batch size.
    """

    table: CostTable
    traces: str
    about: About
    dense: bool
    seeds: int
    comparisons: tuple[Comparison, ...]
    wrong_tables: tuple[WrongTables, ...]

    @cached_property
    def summary(self) -> str:
        """Of the verdicts, in a sentence or two."""
        return summary(self.comparisons)

    def as_json(self) -> str:
        """Everything as JSON; unbounded intervals end in null."""
        table = self.table
        return as_json(
            {
                "schema": SCHEMA,
                "summary": self.summary,
                "table": {"sha256": table.sha256, "key": to_mapping(table.key)},
                "traces": self.traces,
                "about": to_mapping(self.about),
                "seeds": self.seeds,
                "scenarios": [_scenario(each) for each in self.comparisons],
                "wrong_tables": [to_mapping(each) for each in self.wrong_tables],
            }
        )


def _scenario(found: Comparison) -> dict[str, object]:
    verdict = {
        "choice": found.choice,
        "policy": str(found.advised),
        "settled": found.settled,
        "sure": found.sure,
        "break_even": found.break_even,
    }
    return {"verdict": verdict, **to_mapping(found)}


def study(
    trace: Trace,
    table: CostTable,
    batches: Sequence[int],
    seeds: int,
    say: Callable[[str], None],
) -> ReplayStudy:
    """Replay a trace; `say` gets a line for each scenario before it is replayed."""
    _check(table, batches, seeds)
    check_same_model(trace.about, table.model)
    check_trees(trace)
    replays, comparisons = list(_replays(trace, table, batches, seeds)), []
    for replay in replays:
        say(f"replaying {replay.scenario}: {replay.arrays.tokens} tokens")
        comparisons.append(replay.compare())
    adaptive = {each.scenario: each.adaptive.policy for each in comparisons}
    widest, other = _widest(replays), shipped_table(table.key.gpu)
    say(f"deciding with wrong tables, {widest[0].scenario.workload}")
    wrong = (
        study_wrong_tables(each, wrong_tables(each, other), adaptive[each.scenario])
        for each in widest
    )
    return ReplayStudy(
        table,
        trace.about.model,
        trace.about,
        trace.dense,
        seeds,
        tuple(comparisons),
        tuple(wrong),
    )


def replayed_trace(
    traces: Path | None,
    synthetic: str,
    table: CostTable,
    workloads: Sequence[str] = (),
    temperatures: Sequence[float] = (),
    part: tuple[int, int] = (0, 1),
) -> Trace:
    """The replies that are replayed: of a file, or a synthetic mix.

    Args:
        synthetic: the name of a mix; see `traces.synthetic`.
        workloads, temperatures: those to replay; none means all.
        part: i of n, of the prompts, from 0.
    """
    if (traces is None) == (not synthetic):
        raise ConfigError(
            f"give either a trace file, or --synthetic with one of {', '.join(MIXES)}"
        )
    if traces:
        trace = load_traces(traces)
    else:
        context = int(table.fit.domain["context"][0])
        trace = synthetic_trace(synthetic, context=context)
    return trace.part(*part).only(workloads, temperatures)


def _check(table: CostTable, batches: Sequence[int], seeds: int) -> None:
    """Each request verifies its root and, to decide at all, one token more."""
    if min(batches) < 1 or seeds < 1:
        raise ConfigError("--batch and --seeds are counts; give 1 or more")
    if len(set(batches)) < len(batches):
        raise ConfigError("--batch names a batch size twice; name each once")
    for batch in batches:
        most = table.max_tokens(batch)
        if 2 * batch > most:
            raise ConfigError(
                f"--batch {batch}: {table.path} covers {most} tokens in one forward; "
                f"give {most // 2} at most"
            )


def _replays(
    trace: Trace, table: CostTable, batches: Sequence[int], seeds: int
) -> Iterator[ScenarioReplay]:
    """One a part of the trace and batch size."""
    speed = table.speed_over(trace.about.engine, trace.about.reference_us)
    for part, workload, temperature in parts(trace):
        arrays = TraceArrays(part)
        for batch in batches:
            scenario = Scenario(workload, temperature, batch)
            yield ScenarioReplay(arrays, table, scenario, seeds, speed)


def _widest(replays: Sequence[ScenarioReplay]) -> list[ScenarioReplay]:
    """All workloads at the lowest temperature, at each batch, the smallest first."""
    lowest = replays[0].scenario.temperature
    there = [each for each in replays if each.scenario.temperature == lowest]
    last = there[-1].scenario.workload
    widest = [each for each in there if each.scenario.workload == last]
    return sorted(widest, key=lambda replay: replay.scenario.batch)
