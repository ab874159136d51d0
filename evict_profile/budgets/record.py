"""Recording replies under expert budgets, and how far they are off.

Every prompt is done twice under every setting: decoded, which shows what a step takes
and commits, and with held-out text given, which is the same for all and shows what a
budget costs in quality. docs/measure/budgets.md explains the columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from evict_profile.errors import ConfigError
from evict_profile.runner import Runner
from evict_profile.traces.recording import RecordingPlan, rows_of
from evict_profile.traces.trace import TraceInfo

SCHEMA = "evict-budgets/2"
NONE, MASS, SQRT_TOP_K = "none", "mass", "sqrt-path+top-k"
RULES: dict[str, dict[str, Any]] = {
    NONE: {"ranking": "mass", "exponent": 0.0},
    MASS: {"ranking": "mass", "exponent": 0.0},
    SQRT_TOP_K: {"ranking": "top-k", "exponent": 0.5},
}
"""How experts are ranked: without a budget; by MoE-Spec (arXiv 2602.16052); as a server
ranks them, by what tokens would run, weighed by the root of their path probability."""

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
        ("routing_us", pa.float64()),
        ("kl", pa.float64()),
        ("agrees", pa.int64()),
    ]
)


@dataclass(frozen=True)
class BudgetedReply:
    """What tells a reply from the others."""

    rule: str
    budget: int
    workload: str
    prompt: int
    given: bool


@dataclass(frozen=True, kw_only=True)
class BudgetPlan(RecordingPlan):
    """What one budget recording asks for.

    `experts` are those of a layer, known once the world is open.
    """

    schema = SCHEMA

    batches: tuple[int, ...] = (1,)
    budgets: tuple[int, ...]
    experts: int = 0

    def within(self, available: Mapping[str, int], about: TraceInfo) -> "BudgetPlan":
        """Prompts with their given text, and budgets below all experts."""
        for budget in self.budgets:
            if not about.top_k <= budget < about.experts:
                raise ConfigError(
                    f"--budget {budget}: tokens of {about.model} run {about.top_k} of "
                    f"{about.experts} experts a layer; give {about.top_k} to "
                    f"{about.experts - 1}"
                )
        # The last tree may overshoot the reply.
        tokens = self.prompt_tokens + self.tokens + self.depth + 2
        texts = {
            name: n * self.prompt_tokens // tokens for name, n in available.items()
        }
        plan = super().within(texts, about)
        return BudgetPlan(**{**vars(plan), "experts": about.experts})

    def replies(self) -> Iterator[BudgetedReply]:
        """Prompt by prompt, so that what is recorded so far is of every setting."""
        rules = [rule for rule in RULES if rule != NONE]
        settings = [(rule, budget) for rule in rules for budget in self.budgets]
        for prompt in range(self.prompts):
            for rule, budget in [(NONE, self.experts), *settings]:
                for workload in self.workloads:
                    for given in (False, True):
                        yield BudgetedReply(rule, budget, workload, prompt, given)

    def record(
        self, engine: Runner, about: TraceInfo, reply: BudgetedReply
    ) -> pa.Table:
        """The steps of one reply."""
        ask = {"do": "budget", **asdict(reply), **RULES[reply.rule]}
        ask |= {"prompts": self.prompts, "tokens": self.tokens}
        return rows_of(reply, engine.ask(ask).get("steps", []), COLUMNS)
