"""A whole replay: the verdict on every scenario, and what wrong tables would cost.

Wrong tables are tried where most is known: on all workloads together, at the lowest
temperature.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError
from evict_profile.io import as_json, parse_share
from evict_profile.records import to_mapping
from evict_profile.replay.compare import (
    Comparison,
    Progress,
    Scenario,
    ScenarioReplay,
    parts,
)
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.verdict import Verdict, judge, summary
from evict_profile.replay.wrong_tables import (
    WrongTableStudy,
    name_of,
    shipped_table,
    study_wrong_tables,
    wrong_tables,
)
from evict_profile.table import CostTable
from evict_profile.traces import About, Trace, load_traces
from evict_profile.traces.synthetic import MIXES, mix_of, synthetic_trace
from evict_profile.traces.trace import check_same_model, check_trees

SCHEMA = "evict-replay/3"


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay.

    Attributes:
        traces: the trace file; None where `synthetic` names a mix.
        table: the cost table that prices it.
        batches: requests in lockstep, one replay each.
        workloads, temperatures: those to replay; none means all.
        part: of the prompts, as i/n.
        seeds: orders of replies.
        other_table: of another device, to decide wrongly with; None takes a shipped
            one, where one is of another device.
        synthetic: the mix of a synthetic trace; see `traces.synthetic`.
    """

    traces: Path | None
    table: Path
    batches: Sequence[int]
    workloads: Sequence[str]
    seeds: int
    temperatures: Sequence[float] = ()
    part: str = "1/1"
    other_table: Path | None = None
    synthetic: str = ""


@dataclass(frozen=True)
class ReplayStudy:
    """What a replay found.

    Attributes:
        traces, table: names of the files, or of a synthetic trace.
        sha256: of the table.
        workload: what its acceptance was learnt on; empty where it was not.
        key: what the table prices.
        about: what was traced.
        dense: whether the trace has a tree at every position.
        seeds: orders of replies.
        comparisons, verdicts: one a scenario, in the same order.
        summary: of the verdicts, in a sentence or two.
        wrong_tables: one study a batch size.
        other: the table of another device that was tried; empty where there is none.
    """

    traces: str
    table: str
    sha256: str
    workload: str
    key: dict[str, Any]
    about: About
    dense: bool
    seeds: int
    comparisons: tuple[Comparison, ...]
    verdicts: tuple[Verdict, ...]
    summary: str
    wrong_tables: tuple[WrongTableStudy, ...]
    other: str

    def as_json(self) -> str:
        """Everything as JSON; unbounded intervals end in null."""
        return as_json({"schema": SCHEMA, **to_mapping(self)})


def study(options: ReplayOptions, say: Progress) -> ReplayStudy:
    """Replay a trace; `say` is told of each scenario before it is replayed."""
    _check_options(options)
    table = CostTable.load(options.table)
    trace = _chosen(_trace(options, table), options)
    check_same_model(trace.about, table.model)
    check_trees(trace)
    given = options.other_table
    other = CostTable.load(given) if given else shipped_table(table.key.gpu)
    _check_priced(table, options.batches)
    replays = list(_replays(trace, table, options))
    comparisons = []
    for replay in replays:
        tokens = replay.arrays.tokens
        say(f"replaying {replay.scenario}: {tokens} tokens, {options.seeds} orders")
        comparisons.append(replay.compare())
    verdicts = tuple(judge(comparison) for comparison in comparisons)
    adaptive = {verdict.scenario: verdict.adaptive for verdict in verdicts}
    widest = _widest(replays)
    say(f"deciding with wrong tables, {widest[0].scenario.workload}")
    return ReplayStudy(
        traces=options.traces.name if options.traces else trace.about.model,
        table=options.table.name,
        sha256=table.sha256,
        workload=table.acceptance.workload if table.acceptance else "",
        key=to_mapping(table.key),
        about=trace.about,
        dense=trace.dense,
        seeds=options.seeds,
        comparisons=tuple(comparisons),
        verdicts=verdicts,
        summary=summary(verdicts),
        wrong_tables=tuple(
            study_wrong_tables(
                replay, wrong_tables(replay, other), adaptive[replay.scenario]
            )
            for replay in widest
        ),
        other=name_of(other) if other else "",
    )


def _check_options(options: ReplayOptions) -> None:
    if min(options.batches) < 1:
        raise ConfigError(f"--batch {min(options.batches)} is none; give 1 or more")
    if len(set(options.batches)) < len(options.batches):
        raise ConfigError("--batch names a batch size twice; name each once")
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds} is none; give 1 or more")


def _check_priced(table: CostTable, batches: Sequence[int]) -> None:
    """Each request verifies its root and, to decide at all, one token more."""
    for batch in batches:
        most = table.max_tokens(batch)
        if 2 * batch > most:
            raise ConfigError(
                f"--batch {batch}: {table.path} prices {most} tokens in one forward; "
                f"give {most // 2} at most"
            )


def _trace(options: ReplayOptions, table: CostTable) -> Trace:
    if (options.traces is None) == (not options.synthetic):
        raise ConfigError(
            f"give either a trace file, or --synthetic with one of {', '.join(MIXES)}"
        )
    if options.traces is None:
        context = int(table.fit.domain["context"][0])
        return synthetic_trace(mix_of(options.synthetic), context=context)
    return load_traces(options.traces)


def _chosen(trace: Trace, options: ReplayOptions) -> Trace:
    """The replies that are asked for."""
    trace = trace.part(*parse_share("--part", options.part))
    any_of: tuple[None] = (None,)
    replies = [
        reply
        for temperature in tuple(sorted(set(options.temperatures))) or any_of
        for name in tuple(sorted(set(options.workloads))) or any_of
        for reply in trace.only(name, temperature).replies
    ]
    return Trace(trace.about, tuple(replies), trace.clocks)


def _replays(
    trace: Trace, table: CostTable, options: ReplayOptions
) -> Iterator[ScenarioReplay]:
    """One a part of the trace and batch size."""
    speed = table.speed_over(trace.about.engine, trace.about.reference_us)
    for part, workload, temperature in parts(trace):
        arrays = TraceArrays(part)
        for batch in options.batches:
            scenario = Scenario(workload, temperature, batch)
            yield ScenarioReplay(arrays, table, scenario, options.seeds, speed)


def _widest(replays: Sequence[ScenarioReplay]) -> list[ScenarioReplay]:
    """All workloads at the lowest temperature, at each batch, the smallest first."""
    lowest = replays[0].scenario.temperature
    there = [each for each in replays if each.scenario.temperature == lowest]
    last = there[-1].scenario.workload
    widest = [each for each in there if each.scenario.workload == last]
    return sorted(widest, key=lambda replay: replay.scenario.batch)
