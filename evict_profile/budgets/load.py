"""Reading a budget recording, and refusing in one sentence what none can be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.budgets.join import joined
from evict_profile.budgets.schema import BUDGETS
from evict_profile.budgets.settings import NONE, RULES, Setting
from evict_profile.budgets.steps import Prompt, Rows, Steps
from evict_profile.errors import TraceError
from evict_profile.records import parse
from evict_profile.signed import Facts
from evict_profile.traces import About, Clock
from evict_profile.traces.marks import notes_of, readable


@dataclass(frozen=True)
class Notes:
    """What a recording's metadata holds, beside its schema.

    Attributes:
        learnt: what static rankings and budgets per layer were learnt on.
        recorded: what was asked of the recorder.
    """

    about: About = field(default_factory=About)
    clocks: tuple[Clock, ...] = ()
    settings: tuple[Setting, ...] = ()
    learnt: Facts = field(default_factory=dict)
    recorded: Facts = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Recording:
    """The same prompts under every setting, decoded and given.

    Attributes:
        settings: `none` is one of them.
        prompts: sorted; `steps.prompt` counts them.
    """

    notes: Notes
    prompts: tuple[Prompt, ...]
    steps: Steps

    @property
    def about(self) -> About:
        """What was recorded, on what."""
        return self.notes.about

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings, in the order of the metadata."""
        return self.notes.settings

    @property
    def none(self) -> int:
        """The place of the setting without a budget."""
        return [each.rule for each in self.settings].index(NONE)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, sorted."""
        return tuple(sorted({workload for workload, _ in self.prompts}))

    def only(self, workloads: Sequence[str]) -> "Recording":
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

    def half(self, index: int) -> "Recording":
        """Every other prompt, from `index` on."""
        return self._of([number % 2 == index for number in range(len(self.prompts))])

    def _of(self, those: Sequence[bool]) -> "Recording":
        """Only those prompts, one entry each."""
        kept = np.array(those)
        prompts = tuple(p for p, k in zip(self.prompts, those, strict=True) if k)
        place = np.cumsum(kept) - 1
        steps = self.steps.take(kept[self.steps.prompt])
        return replace(
            self, prompts=prompts, steps=replace(steps, prompt=place[steps.prompt])
        )


def load_recording(*paths: Path) -> Recording:
    """The recording in a Parquet file, or in several that differ in rules alone.

    Raises:
        TraceError: no such file, no Parquet, another schema, a missing column, steps
            that cannot be, settings that did not decode the same, or files that are of
            other prompts; the message names the first one and the fix.
        ConfigError: the metadata has a field of another type.
    """
    parts = []
    for path in paths:
        with readable(path, BUDGETS):
            table = pq.ParquetFile(path).read()
        notes = notes_of(table.schema, str(path), BUDGETS)
        parse(Notes, notes, str(path), extra_keys=True)
        parts.append((str(path), table))
    whole = joined(parts) if len(parts) > 1 else parts[0][1]
    return recording_of(whole, ", ".join(source for source, _ in parts))


def recording_of(table: pa.Table, source: str) -> Recording:
    """The recording that a table holds.

    Raises:
        TraceError, ConfigError: as `load_recording`.
    """
    notes = parse(
        Notes, notes_of(table.schema, source, BUDGETS), source, extra_keys=True
    )
    _check_settings(notes, source)
    steps, prompts = Rows(table, notes.settings, notes.about.experts, source).steps()
    recording = Recording(notes, prompts, steps)
    _check_alike(recording, source)
    return recording


def _check_settings(notes: Notes, source: str) -> None:
    about = notes.about
    if not (about.layers and about.experts and about.top_k):
        raise TraceError(
            f"{source}: its metadata must say layers, experts and top_k of the model; "
            "add them to 'about'"
        )
    for setting in notes.settings:
        if reason := _amiss(setting, about):
            raise TraceError(f"{source}: setting '{setting.name}' {reason}; mend it")
    names = [setting.name for setting in notes.settings]
    if names.count(NONE) != 1 or len(set(names)) < len(names):
        raise TraceError(
            f"{source}: must have '{NONE}' and every other setting once, and has "
            f"{', '.join(names) or 'none at all'}; record them so"
        )


def _amiss(setting: Setting, about: About) -> str:
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


def _check_alike(recording: Recording, source: str) -> None:
    """Every setting has decoded, and been given, each prompt."""
    count = (len(recording.settings), len(recording.prompts), 2)
    there, steps = np.zeros(count, bool), recording.steps
    there[steps.setting, steps.prompt, steps.given.astype(np.int64)] = True
    if not there.all():
        setting, prompt, given = np.argwhere(~there)[0]
        workload, number = recording.prompts[prompt]
        raise TraceError(
            f"{source}: setting '{recording.settings[setting].name}' lacks "
            f"{'given' if given else 'decoded'} text of prompt {number} of {workload}; "
            "record every prompt, decoded and given, under every setting"
        )
