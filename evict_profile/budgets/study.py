"""Which expert budget to run, if any: the fastest that keeps a stated quality.

A budget keeps a quality only where the worse end of its interval does. Quality is
judged on given text, which is the same for every setting; what a setting has decoded it
chose itself. For the same reason a budget gets no credit for committing more tokens a
step than the unbudgeted target does. Whatever is the best of many settings owes
something to luck, so the choice is made once more on every other prompt, and judged on
the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evict_profile.budgets.frontier import Front, Point, front_of, fronts_of
from evict_profile.budgets.load import BudgetRecord, load_budgets
from evict_profile.budgets.prices import RecordPrices
from evict_profile.errors import ConfigError
from evict_profile.io import as_json
from evict_profile.records import Facts, to_mapping
from evict_profile.stats import MIN_PROMPTS
from evict_profile.table import CostTable
from evict_profile.traces.trace import About, check_same_model

SCHEMA = "evict-budget-front/4"
DEFAULT_AGREEMENT = 0.98
"""What is required where nothing is stated."""

Choice = Literal["take the budget", "run without", "none keeps the quality"]
MESSAGES: dict[Choice, str] = {
    "take the budget": "Take {}. It is LOSSY.",
    "run without": "Run without a budget: the fastest that keeps it is {}.",
    "none keeps the quality": "No budget keeps that: run without, or ask for less. "
    "Closest to the unbudgeted target is {}.",
}


@dataclass(frozen=True)
class Bounds:
    """What must be kept; None requires nothing.

    Attributes:
        kl: nats a token of given text, at most.
        agreement: share of tokens of given text, at least.
        loss: nats a token of given text over the unbudgeted target, at most.
        accept: accept length over that without a budget, at least.
    """

    kl: float | None = None
    agreement: float | None = None
    loss: float | None = None
    accept: float | None = None

    def __post_init__(self) -> None:
        for name, most in (("kl", math.inf), ("agreement", 1.0), ("accept", 1.0)):
            bound = getattr(self, name)
            if bound is not None and not 0.0 < bound <= most:
                within = "above 0" + (f" and at most {most:g}" if most == 1.0 else "")
                raise ConfigError(f"--{name} {bound:g} cannot be; give one {within}")
        if self.loss is not None and not math.isfinite(self.loss):
            raise ConfigError(f"--loss {self.loss:g} cannot be; give a number of nats")

    def keeps(self, point: Point) -> bool:
        """Whether the worse end of every interval that counts is within bounds."""
        given = point.given
        return (
            (self.kl is None or given.kl.high <= self.kl)
            and (self.agreement is None or given.agreement.low >= self.agreement)
            and (self.loss is None or given.excess_loss.high <= self.loss)
            and (self.accept is None or point.accept_ratio.low >= self.accept)
        )

    def __str__(self) -> str:
        signs = {"kl": "<=", "agreement": ">=", "loss": "<=", "accept": ">="}
        stated = {name: getattr(self, name) for name in signs}
        return ", ".join(
            f"{name} {signs[name]} {bound:g}"
            for name, bound in stated.items()
            if bound is not None
        )


@dataclass(frozen=True)
class Advice:
    """What to do on one workload, or on all.

    Attributes:
        required: the quality to keep.
        point: what is advised, or what comes closest; None where no rule is deployable.
        kept: names of all deployable settings that keep the quality.
    """

    choice: Choice
    required: Bounds
    point: Point | None
    kept: tuple[str, ...]

    @property
    def message(self) -> str:
        """What to do, in a sentence."""
        if self.point is None:
            return "The recording has no rule that could be deployed; record one."
        name, ratio = self.point.setting.name, self.point.earned
        setting = f"{name}, at {ratio.value:.2f} of the speed without a budget"
        if ratio.known:
            setting = f"{setting} ({ratio.low:.2f} to {ratio.high:.2f})"
        return MESSAGES[self.choice].format(setting)


@dataclass(frozen=True)
class Unseen:
    """What one half of the prompts advises, on the other half.

    Attributes:
        point: the setting as the other half has it.
        kept: whether it keeps there what is required.
    """

    point: Point
    kept: bool


@dataclass(frozen=True)
class StudyPart:
    """One workload, or all together."""

    front: Front
    advice: Advice


@dataclass(frozen=True)
class BudgetStudy:
    """What a recording and a table say together.

    Attributes:
        recording, table: names of the files.
        sha256: of the table.
        key: what it prices.
        price_interval: of the prices of these steps, the median as shares of them.
        price_percent: its level.
        about: what was recorded.
        parts: all workloads together, then each.
        unseen: the advice on prompts that it was not chosen on; None where half the
            prompts advise no budget or are too few.
        caveats: what the prices had to assume.
    """

    recording: str
    table: str
    sha256: str
    key: Facts
    price_interval: tuple[float, float]
    price_percent: int
    about: About
    parts: tuple[StudyPart, ...]
    unseen: Unseen | None
    caveats: tuple[str, ...]

    @property
    def whole(self) -> StudyPart:
        """All workloads together."""
        return self.parts[0]

    def as_json(self) -> str:
        """Everything as JSON; unbounded intervals end in null."""
        return as_json({"schema": SCHEMA, **to_mapping(self)})


def study(
    recordings: Sequence[Path],
    table_path: Path,
    workloads: Sequence[str] = (),
    bounds: Bounds = Bounds(),
) -> BudgetStudy:
    """Price a recording's settings and recommend one.

    Args:
        recordings: of the same prompts, which may differ in rules.
        workloads: those to take; none means all.
        bounds: the quality to keep.
    """
    record, table = load_budgets(*recordings), CostTable.load(table_path)
    check_same_model(record.about, table.model, "recording")
    record = record.only(workloads or record.workloads)
    prices = RecordPrices(table, record)
    caveats = prices.caveats
    if len(record.prompts) < MIN_PROMPTS:
        caveats += (
            f"{len(record.prompts)} prompts are too few to tell whether a budget keeps "
            f"a quality; record {MIN_PROMPTS} or more",
        )
    return BudgetStudy(
        recording=", ".join(path.name for path in recordings),
        table=table_path.name,
        sha256=table.sha256,
        key=to_mapping(table.key),
        price_interval=prices.interval,
        price_percent=95,
        about=record.about,
        parts=tuple(
            StudyPart(front, recommend(front, bounds))
            for front in fronts_of(record, prices)
        ),
        unseen=judge_unseen(record, prices, bounds),
        caveats=caveats,
    )


def recommend(front: Front, bounds: Bounds) -> Advice:
    """The fastest deployable setting that keeps what is required, if it gains speed."""
    if bounds == Bounds():
        bounds = Bounds(agreement=DEFAULT_AGREEMENT)
    kept = [point for point in front.deployable if bounds.keeps(point)]
    names = tuple(point.setting.name for point in kept)
    faster = [point for point in kept if point.earned.above_one]
    if not kept:
        closest = min(front.deployable, key=lambda p: p.given.kl.value, default=None)
        return Advice("none keeps the quality", bounds, closest, names)
    choice: Choice = "take the budget" if faster else "run without"
    point = max(faster or kept, key=lambda p: p.earned.value)
    return Advice(choice, bounds, point, names)


def judge_unseen(
    record: BudgetRecord, prices: RecordPrices, bounds: Bounds
) -> Unseen | None:
    """What every other prompt advises, judged on the rest.

    None where one half advises no budget, or the other has too few prompts.
    """
    halves = [record.half(index) for index in (0, 1)]
    if min(len(half.prompts) for half in halves) < MIN_PROMPTS:
        return None
    chosen, judged = (front_of(half, prices) for half in halves)
    advice = recommend(chosen, bounds)
    if advice.choice != "take the budget" or advice.point is None:
        return None
    setting = advice.point.setting
    point = next(each for each in judged.points if each.setting == setting)
    return Unseen(point, advice.required.keeps(point))
