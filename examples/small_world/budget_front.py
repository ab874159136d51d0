"""Speed against quality under expert budgets, a point a setting, at a table's costs.

Speed is all tokens over all time and quality a mean over tokens, so intervals resample
prompts; all settings have the same resamples. Quality is of given text, the same for
every setting. Under a budget another text is decoded, which may be easier to draft: so
no setting is credited with more tokens a step than the target without a budget commits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from evict_profile.cost_model import padded_tokens
from evict_profile.errors import ConfigError, DataError
from evict_profile.io import as_json
from evict_profile.records import Facts, to_mapping
from evict_profile.stats import MIN_PROMPTS, Bootstrap, Estimate, Floats
from evict_profile.table import CostTable, Drafting
from evict_profile.traces.load import Part, parts_of
from evict_profile.traces.schema import Metadata
from evict_profile.traces.trace import TraceInfo, check_same_model
from examples.small_world.engine.budgets import NONE
from examples.small_world.plans import BUDGET_SCHEMA

SETTING = ["rule", "budget"]


@dataclass(frozen=True)
class Point:
    """One setting.

    Attributes:
        speed: over no budget, tokens a step counted up to those of no budget.
        committed: tokens a step, the target's own included.
        union: distinct experts, mean over layers.
        step_us: a whole step, with drafting, routing and the rest.
        kl: KL(unbudgeted || budgeted) on given text, nats a token.
        agreement: share of given tokens where both find the same token likeliest.
    """

    rule: str
    budget: int
    tokens_per_s: Estimate
    speed: Estimate
    committed: Estimate
    union: Estimate
    step_us: Estimate
    kl: Estimate
    agreement: Estimate

    @property
    def name(self) -> str:
        """ "mass 16"; "none"."""
        return self.rule if self.rule == NONE else f"{self.rule} {self.budget}"


@dataclass(frozen=True)
class BudgetFront:
    """What a recording and a table show together.

    Attributes:
        points: without a budget first, then each rule, the smallest budget first.
        agreement: what a budget has to keep, at the worse end of its interval.
    """

    table: CostTable
    about: TraceInfo
    workloads: tuple[str, ...]
    prompts: int
    points: tuple[Point, ...]
    agreement: float
    caveats: tuple[str, ...]

    @property
    def advised(self) -> Point:
        """The fastest setting that keeps the quality and is surely faster than none."""
        none, *budgets = self.points
        kept = [p for p in budgets if p.agreement.low >= self.agreement]
        faster = [point for point in kept if point.speed.above_one]
        return max(faster, key=lambda point: point.speed.value, default=none)

    @property
    def message(self) -> str:
        """What to run, in a sentence."""
        found, kept = self.advised, f"an agreement of {self.agreement:.1%}"
        if found.rule == NONE:
            return f"Run without a budget: none keeps {kept} and is surely faster."
        return (
            f"Take {found.name}: {found.speed.value:.2f} ({found.speed.low:.2f} to "
            f"{found.speed.high:.2f}) times the speed without a budget, keeping {kept}."
            " It is LOSSY."
        )

    def as_json(self) -> str:
        """Everything as JSON; unbounded intervals end in null."""
        facts: Facts = {
            "schema": "evict-budget-front/5",
            "advised": self.advised.name,
            "table": {"sha256": self.table.sha256, "key": to_mapping(self.table.key)},
            "about": to_mapping(self.about),
            "workloads": self.workloads,
            "prompts": self.prompts,
            "agreement": self.agreement,
            "points": [to_mapping(point) for point in self.points],
            "caveats": self.caveats,
        }
        return as_json(facts)


def budget_front(
    recording: Path,
    table: CostTable,
    workloads: Sequence[str] = (),
    agreement: float = 0.98,
) -> BudgetFront:
    """Evaluate a recording's steps, and compare its settings."""
    if not 0.0 < agreement <= 1.0:
        raise ConfigError(f"--agreement {agreement:g}: give a share from 0 to 1")
    found = timed_steps(parts_of(recording, BUDGET_SCHEMA), table, workloads)
    caveats, sums = found.caveats, SettingSums(found.steps)
    prompts = sums.bootstrap.prompts
    if prompts < MIN_PROMPTS:
        caveats += (
            f"{prompts} prompts are too few to show whether a budget keeps a quality; "
            f"record {MIN_PROMPTS} or more",
        )
    return BudgetFront(
        table,
        found.about,
        tuple(sorted(set(found.steps["workload"]))),
        prompts,
        tuple(_points(sums)),
        agreement,
        caveats,
    )


@dataclass(frozen=True)
class TimedSteps:
    """A recording's steps, with the time of each at a table's costs (`us`)."""

    steps: pd.DataFrame
    about: TraceInfo
    caveats: tuple[str, ...]


def timed_steps(
    parts: Sequence[Part], table: CostTable, workloads: Sequence[str] = ()
) -> TimedSteps:
    """The steps of these workloads, or of all."""
    metadata = parts[0].metadata
    check_same_model(metadata.about, table.model, "recording")
    steps = pa.concat_tables([part.table for part in parts]).to_pandas()
    there = sorted(set(steps["workload"]))
    for name in workloads:
        if name not in there:
            raise DataError(
                f"{parts[0].path.parent}: holds no workload {name}; it holds "
                f"{', '.join(there)}"
            )
    steps = steps[steps["workload"].isin(workloads or there)]
    steps["us"], caveats = _step_us(steps, metadata, table)
    return TimedSteps(steps, metadata.about, caveats)


class SettingSums:
    """Sums over the steps of settings; all settings have the same resamples."""

    def __init__(self, steps: pd.DataFrame) -> None:
        self.bootstrap = Bootstrap(len(steps[["workload", "prompt"]].drop_duplicates()))
        self._by_prompt = (
            steps.assign(steps=1.0)
            .groupby(["given", *SETTING, "workload", "prompt"])
            .sum(numeric_only=True)
        )

    @property
    def settings(self) -> list[tuple[str, int]]:
        """Without a budget first, then by rule and budget."""
        names = self._by_prompt.reset_index()[SETTING].drop_duplicates()
        pairs = names.itertuples(index=False, name=None)
        return sorted(pairs, key=lambda each: (each[0] != NONE, *each))

    def of(self, rule: str, budget: int, given: bool = False) -> dict[str, Floats]:
        """Of each column, float64 [1 + resamples]; `steps` counts them."""
        own: Any = self._by_prompt.xs((given, rule, budget))
        sums = self.bootstrap.sums(own.to_numpy(float))
        return dict(zip(own.columns, sums, strict=True))

    def speed(self, rule: str, budget: int) -> Floats:
        """Over no budget, tokens a step counted up to those of no budget."""
        none, own = self.of(*self.settings[0]), self.of(rule, budget)
        tokens, us = (
            own[name] / own["steps"] * none["steps"] / none[name]
            for name in ("committed", "us")
        )
        return np.minimum(tokens, 1.0) / us


def _step_us(
    steps: pd.DataFrame, metadata: Metadata, table: CostTable
) -> tuple[Floats, tuple[str, ...]]:
    """Times of whole steps of one request, float64 [steps], and what they assume.

    Draft times are the table's; where it has none, the recording's clocks, brought to
    the speed of the table's machine. Routing is the median of a setting's steps.
    """
    about = metadata.about
    speed = table.speed_over(about.engine, about.reference_us)
    own = "the recording's own clocks"
    drafting = table.drafting or Drafting.at_speed(
        metadata.clocks, own, about.engine, speed
    )
    tokens = padded_tokens(steps["verified"].to_numpy(), 1, table.axes.capture_sizes)
    context = np.clip(steps["context"].to_numpy(), *table.fit.domain["context"])
    verify_us = table.cost.latency_us(tokens, steps["union"].to_numpy(), context, 1)
    routing_us = speed * steps.groupby(SETTING)["routing_us"].transform("median")
    beside_us, caveats = 0.0, table.caveats
    if drafting is None:
        caveats += ("drafting and the host are free: nobody has clocked them",)
    else:
        beside_us = drafting.at(1).overhead_us(about.depth)
        caveats += drafting.caveats(1)
    us: Floats = verify_us + beside_us + routing_us.to_numpy()
    return us, caveats


def _points(sums: SettingSums) -> Iterator[Point]:
    estimate = sums.bootstrap.estimate
    for rule, budget in sums.settings:
        ran, given = sums.of(rule, budget), sums.of(rule, budget, given=True)
        tokens, us = ran["committed"] / ran["steps"], ran["us"] / ran["steps"]
        yield Point(
            rule,
            int(budget),
            tokens_per_s=estimate(1e6 * tokens / us),
            speed=estimate(sums.speed(rule, budget)),
            committed=estimate(tokens),
            union=estimate(ran["union"] / ran["steps"]),
            step_us=estimate(us),
            kl=estimate(given["kl"] / given["committed"]),
            agreement=estimate(given["agrees"] / given["committed"]),
        )
