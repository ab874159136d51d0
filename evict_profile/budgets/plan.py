"""What a budget recording asks for, reply by reply."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evict_profile.budgets.schema import MASS, NONE, RULES, SQRT_TOP_K
from evict_profile.errors import ConfigError
from evict_profile.traces.recording import RecordingPlan
from evict_profile.traces.trace import About

DEFAULT_RULES = (MASS, SQRT_TOP_K)
"""The paper's rule, and the one that diverged least on the small world."""

MULTIPLES = (2, 3, 4, 6, 8, 12)
"""Budgets by default, in experts that one token runs."""


@dataclass(frozen=True)
class BudgetKey:
    """What tells a reply from the others."""

    rule: str
    budget: int
    workload: str
    prompt: int
    given: bool


@dataclass(frozen=True, kw_only=True)
class BudgetPlan(RecordingPlan):
    """What one budget recording asks for.

    Attributes:
        budgets: experts a layer may activate; those of `MULTIPLES`, if empty.
        rules: how they are chosen; `DEFAULT_RULES`, if empty. Without a budget is
            always recorded.
        experts: of a layer, known once the world is open.
        learning_prompts: of each workload, behind which budgets are learnt.
    """

    prompts: int = 16
    budgets: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    experts: int = 0
    learning_prompts: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self.rules:
            if rule not in RULES:
                raise ConfigError(f"--rule {rule}: give one of {', '.join(RULES)}")

    def within(self, available: Mapping[str, int], about: About) -> "BudgetPlan":
        return replace(
            super().within(available, about),
            budgets=self._budgets(about),
            rules=self.rules or DEFAULT_RULES,
            experts=about.experts,
        )

    def check_prompts(self, workload: str, available: int, about: About) -> None:
        """Check that there is text enough: every second prompt is for learning."""
        # The last tree may overshoot the reply.
        text_tokens = self.prompt_tokens + self.tokens + self.depth + 2
        prompts = available * self.prompt_tokens // (2 * text_tokens)
        if prompts < self.prompts:
            raise ConfigError(
                f"--prompts {self.prompts}: workload {workload} of {about.model} "
                f"has text for {prompts} with replies of {self.tokens} tokens, since "
                "every second prompt is kept for learning"
            )

    def _budgets(self, about: About) -> tuple[int, ...]:
        top_k, experts = about.top_k, about.experts
        for budget in self.budgets:
            if not top_k <= budget < experts:
                raise ConfigError(
                    f"--budget {budget}: tokens of {about.model} run {top_k} of "
                    f"{experts} experts a layer; give {top_k} to {experts - 1}"
                )
        default = tuple(m * top_k for m in MULTIPLES if m * top_k < experts)
        if not (self.budgets or default):
            raise ConfigError(
                f"--budget: {about.model} has {experts} experts a layer, of which a "
                f"token runs {top_k}; name budgets from {top_k} to {experts - 1}"
            )
        return self.budgets or default

    def settings(self) -> Sequence[tuple[str, int]]:
        """Rules with their budgets; none first."""
        rules = [rule for rule in self.rules if rule != NONE]
        pairs = [(rule, budget) for rule in rules for budget in self.budgets]
        return [(NONE, self.experts), *pairs]

    def replies(self) -> Iterator[BudgetKey]:
        """Prompt by prompt, so that what is recorded so far is of every setting."""
        for prompt in range(self.prompts):
            for rule, budget in self.settings():
                for workload in self.workloads:
                    for given in (False, True):
                        yield BudgetKey(rule, budget, workload, prompt, given)
