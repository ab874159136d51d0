"""Reading budget recordings, and refusing in one sentence what none can be.

A recording of many rules takes hours on one core; several at once, each of some rules,
take less, and are read as one.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evict_profile.budgets.schema import BUDGETS, COLUMNS, NONE, RULES, Setting
from evict_profile.errors import TraceError
from evict_profile.records import Facts, differences, parse
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.table import DraftClock
from evict_profile.traces.columns import Columns
from evict_profile.traces.trace import About

MAY_DIFFER = ("rules", "budgets", "reference_us")
"""In what recordings that are joined may differ."""

SCALARS = ("given", "context", "verified", "committed", "union")
LISTS = ("kl", "agrees", "loss", "plain_loss")
"""One entry a committed token."""
SLACK = 1e-6
"""Of unions, which are means over layers."""
ROUNDING = 1e-3
"""Nats by which rounding may push a divergence or a loss below nothing."""

Prompt = tuple[str, int]
"""Workload and number."""


@dataclass(frozen=True)
class Metadata:
    """What a recording's metadata holds, beside its schema.

    Attributes:
        learnt: what static rankings and budgets per layer were learnt on.
        recorded: what was asked of the recorder.
    """

    about: About = field(default_factory=About)
    clocks: tuple[DraftClock, ...] = ()
    settings: tuple[Setting, ...] = ()
    learnt: Facts = field(default_factory=dict)
    recorded: Facts = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Steps:
    """One entry a step in every array.

    Attributes:
        setting: int64, index of the recording's setting.
        prompt: int64, index of the recording's prompt.
        given: bool, the text was forced, not decoded.
        context, verified, committed: int64, tokens.
        union: float64, distinct experts, mean over layers.
        kl, agrees, loss, plain_loss: float64, summed over the tokens committed.
    """

    setting: Ints
    prompt: Ints
    given: Bools
    context: Ints
    verified: Ints
    committed: Ints
    union: Floats
    kl: Floats
    agrees: Floats
    loss: Floats
    plain_loss: Floats

    def take(self, kept: Bools) -> "Steps":
        """Only these steps."""
        arrays = {each.name: getattr(self, each.name)[kept] for each in fields(self)}
        return Steps(**arrays)


@dataclass(frozen=True, eq=False)
class BudgetRecord:
    """The same prompts under every setting, decoded and given.

    Attributes:
        prompts: sorted; `steps.prompt` counts them.
    """

    metadata: Metadata
    prompts: tuple[Prompt, ...]
    steps: Steps

    @property
    def about(self) -> About:
        """What was recorded, on what."""
        return self.metadata.about

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings, in the order of the metadata."""
        return self.metadata.settings

    @property
    def none(self) -> int:
        """The index of the setting without a budget."""
        return [setting.rule for setting in self.settings].index(NONE)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, sorted."""
        return tuple(sorted({workload for workload, _ in self.prompts}))

    def only(self, workloads: Sequence[str]) -> "BudgetRecord":
        """The prompts of these workloads.

        Raises:
            TraceError: there are none of one of them.
        """
        for name in workloads:
            if name not in self.workloads:
                raise TraceError(
                    f"the recording holds no workload {name}; it holds "
                    f"{', '.join(self.workloads)}"
                )
        return self._of([workload in workloads for workload, _ in self.prompts])

    def half(self, index: int) -> "BudgetRecord":
        """Every other prompt, from `index` on."""
        return self._of([number % 2 == index for number in range(len(self.prompts))])

    def _of(self, mask: Sequence[bool]) -> "BudgetRecord":
        """Only the prompts where the mask is true."""
        kept = np.array(mask)
        prompts = tuple(p for p, k in zip(self.prompts, mask, strict=True) if k)
        index = np.cumsum(kept) - 1
        steps = self.steps.take(kept[self.steps.prompt])
        return replace(
            self, prompts=prompts, steps=replace(steps, prompt=index[steps.prompt])
        )


def load_budgets(*paths: Path) -> BudgetRecord:
    """The recording in a Parquet file, or in several that differ in rules alone.

    Raises:
        TraceError: no such file, no Parquet, another schema, a missing column, steps
            that cannot be, settings that did not decode the same, or files that are of
            other prompts; the message names the first one and the fix.
        ConfigError: the metadata has a field of another type.
    """
    parts = [(str(path), BUDGETS.read(path)) for path in paths]
    for source, table in parts:
        _metadata(table, source)
    return budgets_of(joined(parts), ", ".join(source for source, _ in parts))


def budgets_of(table: pa.Table, source: str) -> BudgetRecord:
    """The recording that a table holds.

    Raises:
        TraceError, ConfigError: as `load_budgets`.
    """
    metadata = _metadata(table, source)
    _check_settings(metadata, source)
    prompts, steps = _steps(
        Columns(
            table,
            COLUMNS,
            source,
            needed=tuple(COLUMNS.names),
            named_by=("rule", "budget", "workload", "prompt"),
        ),
        metadata,
    )
    record = BudgetRecord(metadata, prompts, steps)
    _check_alike(record, source)
    return record


def joined(parts: Sequence[tuple[str, pa.Table]]) -> pa.Table:
    """Named tables as one, whose metadata has the settings of all.

    All decoded the prompts without a budget, which is kept once. Each told its times by
    its own reference; here they are told by the first one's.

    Raises:
        TraceError: they are of other prompts, trees, worlds or devices; what differs is
            named.
    """
    (first, table), *others = parts
    metadata = BUDGETS.metadata(table.schema, first)
    settings = {_pair(each): each for each in metadata["settings"]}
    tables = [table]
    for source, other in others:
        added = BUDGETS.metadata(other.schema, source)
        _check_same_prompts(metadata, first, added, source)
        new = {
            _pair(s): {**s, "routing_us": _speed(metadata, added) * s["routing_us"]}
            for s in added["settings"]
            if _pair(s) not in settings
        }
        settings |= new
        metadata["learnt"] = {**added["learnt"], **metadata["learnt"]}
        kept = pa.array([False] * len(other))
        for rule, budget in new:
            of_rule = pc.equal(other["rule"], rule)
            kept = pc.or_(kept, pc.and_(of_rule, pc.equal(other["budget"], budget)))
        tables.append(other.filter(kept))
    text = json.dumps({**metadata, "settings": [*settings.values()]}, sort_keys=True)
    rows = pa.concat_tables([each.replace_schema_metadata(None) for each in tables])
    return rows.replace_schema_metadata({BUDGETS.key: text.encode()})


def _pair(setting: Facts) -> tuple[str, int]:
    return setting["rule"], setting["budget"]


def _speed(first: Facts, other: Facts) -> float:
    """Brings the other's times to the first's; 1 where there is no reference."""
    first_us, other_us = (each["about"]["reference_us"] for each in (first, other))
    return float(first_us / other_us) if first_us and other_us else 1.0


def _check_same_prompts(metadata: Facts, first: str, added: Facts, source: str) -> None:
    ours, theirs = (
        {
            name: fact
            for name, fact in each["recorded"].items()
            if name not in MAY_DIFFER
        }
        for each in (metadata, added)
    )
    if reasons := differences(theirs, ours):
        raise TraceError(
            f"{source}: is not of the prompts of {first} ({'; '.join(reasons)}); give "
            "recordings that differ in rules and budgets alone"
        )


def _metadata(table: pa.Table, source: str) -> Metadata:
    stored = BUDGETS.metadata(table.schema, source)
    return parse(Metadata, stored, source, extra_keys=True)


def _steps(columns: Columns, metadata: Metadata) -> tuple[tuple[Prompt, ...], Steps]:
    """The prompts, and all steps."""
    values = {n: columns.values(n) for n in COLUMNS.names if n not in LISTS}
    for name, least in (("position", 0), ("context", 0), ("committed", 1)):
        columns.check_rows(values[name] < least, f"{name} must be at least {least}")
    columns.check_rows(
        values["verified"] < values["committed"],
        "verified must be at least committed: what is committed was verified, and "
        "the root counts",
    )
    pairs = list(zip(values["workload"], values["prompt"].tolist(), strict=True))
    prompts = tuple(sorted(set(pairs)))
    index = {prompt: number for number, prompt in enumerate(prompts)}
    arrays: dict[str, Any] = {
        "setting": _setting_of_rows(columns, values, metadata.settings),
        "prompt": np.array([index[pair] for pair in pairs]),
        **{name: values[name] for name in SCALARS},
        **{name: _summed(columns, name, values["committed"]) for name in LISTS},
    }
    steps = Steps(**arrays)
    _check_unions(columns, steps, metadata)
    keys = (steps.setting, steps.prompt, steps.given, values["position"])
    _, first = np.unique(np.stack(keys), axis=1, return_index=True)
    again = np.ones(len(columns), bool)
    again[first] = False
    columns.check_rows(again, "this position of this text is there twice")
    return prompts, steps


def _summed(columns: Columns, name: str, committed: Ints) -> Floats:
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


def _setting_of_rows(
    columns: Columns, values: dict[str, Any], settings: Sequence[Setting]
) -> Ints:
    """Each row's index among the settings, int64 [rows]."""
    index = {(each.rule, each.budget): i for i, each in enumerate(settings)}
    pairs = zip(values["rule"], values["budget"].tolist(), strict=True)
    setting = np.array([index.get(pair, -1) for pair in pairs])
    columns.check_rows(
        setting < 0,
        "the metadata's settings have no such rule and budget; add it to them",
    )
    return setting


def _check_unions(columns: Columns, steps: Steps, metadata: Metadata) -> None:
    union, experts = steps.union, metadata.about.experts
    # Not `union > experts`: that lets nan through.
    columns.check_rows(
        ~((union >= 0.0) & (union <= experts + SLACK)),
        f"union must be within 0 and the model's {experts} experts",
    )
    allowed = np.array([np.mean(each.per_layer) for each in metadata.settings])
    columns.check_rows(
        union > allowed[steps.setting] + SLACK,
        "union is more than the budget allows; it counts experts that ran",
    )


def _check_settings(metadata: Metadata, source: str) -> None:
    about = metadata.about
    if not (about.layers and about.experts and about.top_k):
        raise TraceError(
            f"{source}: its metadata must say layers, experts and top_k of the model; "
            "add them to 'about'"
        )
    for setting in metadata.settings:
        if reason := _mistake(setting, about):
            raise TraceError(f"{source}: setting '{setting.name}' {reason}; mend it")
    names = [setting.name for setting in metadata.settings]
    if names.count(NONE) != 1 or len(set(names)) < len(names):
        raise TraceError(
            f"{source}: must have '{NONE}' and every other setting once, and has "
            f"{', '.join(names) or 'none at all'}; record them so"
        )


def _mistake(setting: Setting, about: About) -> str:
    """What is wrong with a setting; empty where nothing is."""
    budgets = setting.per_layer
    if setting.rule not in RULES:
        return f"is of no rule among {', '.join(RULES)}"
    if len(budgets) != about.layers:
        return f"has budgets of {len(budgets)} layers, and the model {about.layers}"
    if not all(1 <= budget <= about.experts for budget in budgets):
        return f"has a layer's budget outside 1 and {about.experts} experts"
    if sum(budgets) != setting.budget * about.layers:
        return f"has budgets per layer whose mean is not {setting.budget}"
    if setting.rule == NONE and setting.budget != about.experts:
        return f"has a budget, {setting.budget} of {about.experts} experts"
    # Below 0 where fewer experts are ranked faster than all.
    if not math.isfinite(setting.routing_us):
        return "has a routing_us that is no time"
    return ""


def _check_alike(record: BudgetRecord, source: str) -> None:
    """Every setting has decoded, and been given, each prompt."""
    steps = record.steps
    there = np.zeros((len(record.settings), len(record.prompts), 2), bool)
    there[steps.setting, steps.prompt, steps.given.astype(np.int64)] = True
    if not there.all():
        setting, prompt, given = np.argwhere(~there)[0]
        workload, number = record.prompts[prompt]
        raise TraceError(
            f"{source}: setting '{record.settings[setting].name}' lacks "
            f"{'given' if given else 'decoded'} text of prompt {number} of {workload}; "
            "record every prompt, decoded and given, under every setting"
        )
