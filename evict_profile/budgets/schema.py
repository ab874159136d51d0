"""Which experts a layer may activate, by rule and number, and the file that says so.

Every rule differs from `mass`, which is MoE-Spec's (arXiv 2602.16052), in one thing, or
in those that its name adds up, so that a recording tells what each is worth. Two are
yardsticks: `static` needs no router at run time, and `oracle` knows what nobody can.

The file is Parquet, one row a step, schema `evict-budgets/1`, with settings and clocks
as JSON in its metadata; docs/how-to/budgets.md explains the columns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from evict_profile.runner import Message
from evict_profile.traces.schema import FileFormat
from evict_profile.traces.trace import About

NONE = "none"
MASS = "mass"
STATIC = "static"
SQRT_TOP_K = "sqrt-path+top-k"
ORACLE = "oracle"


@dataclass(frozen=True)
class BudgetRule:
    """How a layer's experts are chosen.

    Attributes:
        ranking: what ranks experts: "mass", router probability summed over the tree's
            tokens; "top-k", of each token only that of the experts that it would run;
            "kept", the same experts in every step; "oracle", what matters to the
            tokens that will be accepted.
        exponent: of a node's path probability, as its token's weight in the ranking.
        mode: "substitution": the experts that are kept stand in for others;
            "truncation": a token that loses an expert gets none in its place.
        by_layer: budgets differ by layer and add up to the same.
    """

    ranking: str = "mass"
    exponent: float = 0.0
    mode: str = "substitution"
    by_layer: bool = False

    def request(
        self, per_layer: Sequence[int] | None, kept: list[list[int]] | None = None
    ) -> Message:
        """The rule as a runner is told: budgets, and the experts that static keeps."""
        return {
            "per_layer": per_layer,
            "mode": self.mode,
            "ranking": self.ranking,
            "exponent": self.exponent,
            "kept": kept,
        }


RULES = {
    NONE: BudgetRule(),
    MASS: BudgetRule(),
    "truncation": BudgetRule(mode="truncation"),
    STATIC: BudgetRule("kept"),
    "path": BudgetRule(exponent=1.0),
    "sqrt-path": BudgetRule(exponent=0.5),
    "top-k": BudgetRule("top-k"),
    SQRT_TOP_K: BudgetRule("top-k", 0.5),
    "layers": BudgetRule(by_layer=True),
    "sqrt-path+top-k+layers": BudgetRule("top-k", 0.5, by_layer=True),
    ORACLE: BudgetRule("oracle"),
}
DEPLOYABLE = tuple(name for name in RULES if name not in (NONE, ORACLE))


@dataclass(frozen=True)
class Setting:
    """A rule at a budget.

    Attributes:
        rule: one of `RULES`.
        budget: experts a layer may activate, mean over the layers.
        per_layer: experts that each MoE layer may activate.
        routing_us: what it adds to routing in one verification of a whole tree.
    """

    rule: str
    budget: int
    per_layer: tuple[int, ...]
    routing_us: float = 0.0

    @property
    def name(self) -> str:
        """ "mass 16"; "none"."""
        return self.rule if self.rule == NONE else f"{self.rule} {self.budget}"


def mistakes(setting: Setting, about: About) -> Iterator[str]:
    """What is wrong with a setting of that model, if anything."""
    budgets = setting.per_layer
    if setting.rule not in RULES:
        yield f"is of no rule among {', '.join(RULES)}"
    if len(budgets) != about.layers:
        yield f"has budgets of {len(budgets)} layers, and the model {about.layers}"
    if not all(1 <= budget <= about.experts for budget in budgets):
        yield f"has a layer's budget outside 1 and {about.experts} experts"
    if sum(budgets) != setting.budget * about.layers:
        yield f"has budgets per layer whose mean is not {setting.budget}"
    if setting.rule == NONE and setting.budget != about.experts:
        yield f"has a budget, {setting.budget} of {about.experts} experts"
    # Below 0 where fewer experts are ranked faster than all.
    if not math.isfinite(setting.routing_us):
        yield "has a routing_us that is no time"


BUDGETS = FileFormat(
    "evict-budgets/1",
    b"evict-budgets",
    "budget recording",
    "docs/how-to/budgets.md",
    "evict-profile trace-budgets",
)

COLUMNS = pa.schema(
    [
        ("rule", pa.string()),
        ("budget", pa.int64()),
        ("workload", pa.string()),
        ("prompt", pa.int64()),
        ("given", pa.bool_()),
        ("position", pa.int64()),
        ("context", pa.int64()),
        ("verified", pa.int64()),
        ("union", pa.float64()),
        ("committed", pa.int64()),
        ("kl", pa.list_(pa.float32())),
        ("agrees", pa.list_(pa.bool_())),
        ("loss", pa.list_(pa.float32())),
        ("plain_loss", pa.list_(pa.float32())),
    ]
)
