"""Reading budget recordings, and refusing in one sentence what none can be.

A recording of many rules takes hours on one core; several at once, each of some rules,
take less, and are read as one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from evict_profile.budgets.schema import BUDGETS, COLUMNS, NONE, Setting, mistakes
from evict_profile.errors import TraceError
from evict_profile.records import Facts, differences, parse
from evict_profile.stats import Floats, Ints
from evict_profile.table import DraftClock
from evict_profile.traces.columns import Columns
from evict_profile.traces.trace import About

MAY_DIFFER = ("rules", "budgets", "reference_us")
"""In what recordings that are joined may differ."""

LISTS = ("kl", "agrees", "loss", "plain_loss")
"""One entry a committed token."""
SLACK = 1e-6
"""Of unions, which are means over layers."""
ROUNDING = 1e-3
"""Nats by which rounding may push a divergence or a loss below nothing."""

Prompt = tuple[str, int]
"""Workload and number."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What is read of a recording's metadata; `recorded` is what was asked for."""

    about: About = field(default_factory=About)
    clocks: tuple[DraftClock, ...] = ()
    settings: tuple[Setting, ...] = ()
    recorded: Facts = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class BudgetRecord(Metadata):
    """The same prompts under every setting, decoded and given.

    Attributes:
        prompts: sorted.
        steps: one row a step. `setting` and `prompt` are places in `settings` and
            `prompts`; `given` tells forced text from decoded; `context`, `verified` and
            `committed` count tokens; `union` is distinct experts, mean over layers;
            `kl`, `agrees`, `loss` and `plain_loss` are sums over committed tokens.
    """

    prompts: tuple[Prompt, ...]
    steps: pd.DataFrame

    @property
    def none(self) -> int:
        """The place of the setting without a budget."""
        return [setting.rule for setting in self.settings].index(NONE)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, sorted."""
        return tuple(sorted({workload for workload, _ in self.prompts}))

    def only(self, workloads: Sequence[str]) -> "BudgetRecord":
        """The prompts of these workloads."""
        for name in workloads:
            if name not in self.workloads:
                raise TraceError(
                    f"the recording holds no workload {name}; it holds "
                    f"{', '.join(self.workloads)}"
                )
        places = [i for i, (name, _) in enumerate(self.prompts) if name in workloads]
        return self._of(places)

    def half(self, index: int) -> "BudgetRecord":
        """Every other prompt, from `index` on."""
        return self._of(range(index, len(self.prompts), 2))

    def _of(self, places: Sequence[int]) -> "BudgetRecord":
        """The prompts at these places."""
        steps = self.steps[self.steps["prompt"].isin(places)]
        moved = np.searchsorted(places, steps["prompt"])
        prompts = tuple(self.prompts[place] for place in places)
        return replace(self, prompts=prompts, steps=steps.assign(prompt=moved))


def load_budgets(*paths: Path) -> BudgetRecord:
    """The recording in a Parquet file, or in several that differ in rules alone."""
    first, *others = paths
    record = record_of(BUDGETS.read(first), str(first))
    for path in others:
        added = record_of(BUDGETS.read(path), str(path))
        _check_same_prompts(record, str(first), added, str(path))
        record = joined(record, added)
    return record


def record_of(table: pa.Table, source: str) -> BudgetRecord:
    """The recording that a table holds."""
    stored = BUDGETS.metadata(table.schema, source)
    metadata = parse(Metadata, stored, source, extra_keys=True)
    _check_settings(metadata, source)
    named_by = ("rule", "budget", "workload", "prompt")
    columns = Columns(table, COLUMNS, source, tuple(COLUMNS.names), named_by)
    prompts, steps = _steps(columns, metadata)
    record = BudgetRecord(**vars(metadata), prompts=prompts, steps=steps)
    _check_complete(record, source)
    return record


def joined(first: BudgetRecord, other: BudgetRecord) -> BudgetRecord:
    """Two recordings of the same prompts as one, with the settings of both.

    Both decoded the prompts without a budget, and some settings perhaps twice; the
    first one's are kept. Each told its times by its own reference; here they are told
    by the first one's, and taken as they are where one has none.
    """
    here_us, there_us = first.about.reference_us, other.about.reference_us
    speed = here_us / there_us if here_us and there_us else 1.0
    names = [setting.name for setting in first.settings]
    new = [i for i, each in enumerate(other.settings) if each.name not in names]
    added = [
        replace(each, routing_us=speed * each.routing_us)
        for each in (other.settings[i] for i in new)
    ]
    steps = other.steps[other.steps["setting"].isin(new)]
    steps = steps.assign(setting=len(names) + np.searchsorted(new, steps["setting"]))
    return replace(
        first,
        settings=(*first.settings, *added),
        steps=pd.concat([first.steps, steps], ignore_index=True),
    )


def _check_same_prompts(
    record: BudgetRecord, source: str, added: BudgetRecord, added_source: str
) -> None:
    ours, theirs = (
        {
            **{k: v for k, v in each.recorded.items() if k not in MAY_DIFFER},
            "prompts of workloads": each.prompts,
        }
        for each in (record, added)
    )
    if reasons := differences(theirs, ours):
        raise TraceError(
            f"{added_source}: is not of the prompts of {source} "
            f"({'; '.join(reasons)}); give recordings that differ in rules and "
            "budgets alone"
        )


def _steps(
    columns: Columns, metadata: Metadata
) -> tuple[tuple[Prompt, ...], pd.DataFrame]:
    """The prompts, and all steps, each checked."""
    names = [name for name in COLUMNS.names if name not in LISTS]
    steps = pd.DataFrame({name: columns.values(name) for name in names})
    pairs = [(setting.rule, setting.budget) for setting in metadata.settings]
    steps["setting"] = _places(steps, ["rule", "budget"], pairs)
    prompts = sorted({*zip(steps["workload"], steps["prompt"].tolist(), strict=True)})
    steps["prompt"] = _places(steps, ["workload", "prompt"], prompts)
    for bad, reason in _bad_rows(steps, metadata):
        columns.check_rows(bad.to_numpy(), reason)
    committed = steps["committed"].to_numpy()
    for name in LISTS:
        steps[name] = _sums(columns, name, committed)
    labels = ["rule", "budget", "workload", "position"]
    return tuple(prompts), steps.drop(columns=labels)


def _places(
    steps: pd.DataFrame, names: list[str], pairs: Sequence[tuple[str, int]]
) -> list[int]:
    """Where each row's pair of values stands among the pairs; -1 where it does not."""
    place = {pair: i for i, pair in enumerate(pairs)}
    rows = steps[names].itertuples(index=False, name=None)
    return [place.get(row, -1) for row in rows]


def _bad_rows(
    steps: pd.DataFrame, metadata: Metadata
) -> Iterator[tuple[pd.Series, str]]:
    """What no step can be: bool [rows], and the reason."""
    for name, least in (("position", 0), ("context", 0), ("committed", 1)):
        yield steps[name] < least, f"{name} must be at least {least}"
    yield (
        steps["verified"] < steps["committed"],
        "verified must be at least committed: what is committed was verified, and "
        "the root counts",
    )
    yield (
        steps["setting"] < 0,
        "the metadata's settings have no such rule and budget; add it to them",
    )
    union, experts = steps["union"], metadata.about.experts
    yield (
        ~union.between(0.0, experts + SLACK),
        f"union must be within 0 and the model's {experts} experts",
    )
    allowed = np.array([np.mean(each.per_layer) for each in metadata.settings])
    yield (
        union > allowed[steps["setting"]] + SLACK,
        "union is more than the budget allows; it counts experts that ran",
    )
    again = steps.duplicated(["setting", "prompt", "given", "position"])
    yield again, "this position of this text is there twice"


def _sums(columns: Columns, name: str, committed: Ints) -> Floats:
    """A list column as one sum a row, float64 [rows]."""
    start, flat = columns.lists(name)
    columns.check_rows(
        np.diff(start) != committed, f"{name} must have one entry a committed token"
    )
    values = flat.astype(np.float64)
    bad = ~np.isfinite(values) | (values < -ROUNDING)
    columns.check_rows(
        np.logical_or.reduceat(bad, start[:-1]), f"{name} must be finite and at least 0"
    )
    sums: Floats = np.add.reduceat(values, start[:-1])
    return sums


def _check_settings(metadata: Metadata, source: str) -> None:
    about = metadata.about
    if not (about.layers and about.experts and about.top_k):
        raise TraceError(
            f"{source}: its metadata must say layers, experts and top_k of the model; "
            "add them to 'about'"
        )
    for setting in metadata.settings:
        if reason := next(mistakes(setting, about), None):
            raise TraceError(f"{source}: setting '{setting.name}' {reason}; mend it")
    names = [setting.name for setting in metadata.settings]
    if names.count(NONE) != 1 or len(set(names)) < len(names):
        raise TraceError(
            f"{source}: must have '{NONE}' and every other setting once, and has "
            f"{', '.join(names) or 'none at all'}; record them so"
        )


def _check_complete(record: BudgetRecord, source: str) -> None:
    """Every setting has decoded, and been given, each prompt."""
    steps = record.steps
    there = np.zeros((len(record.settings), len(record.prompts), 2), bool)
    there[steps["setting"], steps["prompt"], steps["given"].astype(int)] = True
    if not there.all():
        setting, prompt, given = np.argwhere(~there)[0]
        workload, number = record.prompts[prompt]
        raise TraceError(
            f"{source}: setting '{record.settings[setting].name}' lacks "
            f"{'given' if given else 'decoded'} text of prompt {number} of {workload}; "
            "record every prompt, decoded and given, under every setting"
        )
