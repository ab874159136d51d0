"""What a budget recording asks for: which replies, under which budgets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evict_profile.budgets.settings import MASS, NONE, RULES, SQRT_TOP_K
from evict_profile.errors import ConfigError
from evict_profile.traces.trace import About

USUAL = (MASS, SQRT_TOP_K)
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

    def __str__(self) -> str:
        kind = "given" if self.given else "decoded"
        under = self.rule if self.rule == NONE else f"{self.rule} {self.budget}"
        return f"{under}: {self.workload}, prompt {self.prompt}, {kind}"


@dataclass(frozen=True)
class BudgetPlan:
    """What one recording asks for.

    Attributes:
        prompts: of each workload.
        tokens: of each reply.
        budgets: experts a layer may wake; those of `MULTIPLES`, if empty.
        rules: how they are chosen; those of `USUAL`, if empty. Without a budget is
            always recorded.
        workloads: all that the world has, if empty.
        experts: of a layer, known once the world is open.
        depth, fan, nodes: levels of a tree, nodes expanded a level, nodes verified.
        learning_prompts: of each workload, behind which budgets are learnt.
        batches: batch sizes whose whole steps are timed.
        prompt_tokens: of each prompt.
    """

    prompts: int = 16
    tokens: int = 64
    budgets: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    experts: int = 0
    depth: int = 5
    fan: int = 8
    nodes: int = 60
    learning_prompts: int = 4
    batches: tuple[int, ...] = (1,)
    prompt_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("prompts", "tokens", "depth", "fan", "nodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: must be at least 1")
        for option, values in (
            ("budget", self.budgets),
            ("rule", self.rules),
            ("workload", self.workloads),
        ):
            if len(set(values)) < len(values):
                raise ConfigError(f"--{option} has a value twice; give each once")
        for rule in self.rules:
            if rule not in RULES:
                raise ConfigError(f"--rule {rule}: give one of {', '.join(RULES)}")

    def within(self, available: Mapping[str, int], about: About) -> "BudgetPlan":
        """This plan on a world, which has so many prompts of each workload.

        Raises:
            ConfigError: the world has no such workload, too few prompts, or layers
                that cannot keep a budget.
        """
        for workload in self.workloads or available:
            if workload not in available:
                raise ConfigError(
                    f"--workload {workload}: {about.model} has {', '.join(available)}"
                )
            there = available[workload] * self.prompt_tokens // (2 * self._text_tokens)
            if there < self.prompts:
                raise ConfigError(
                    f"--prompts {self.prompts}: workload {workload} of {about.model} "
                    f"has text for {there} with replies of {self.tokens} tokens, since "
                    "every second prompt is kept for learning"
                )
        return replace(
            self,
            workloads=self.workloads or tuple(available),
            budgets=self._budgets(about),
            rules=self.rules or USUAL,
            experts=about.experts,
        )

    @property
    def _text_tokens(self) -> int:
        """Of one prompt with its reply, which the last tree may overshoot."""
        return self.prompt_tokens + self.tokens + self.depth + 2

    def _budgets(self, about: About) -> tuple[int, ...]:
        top_k, experts = about.top_k, about.experts
        for budget in self.budgets:
            if not top_k <= budget < experts:
                raise ConfigError(
                    f"--budget {budget}: tokens of {about.model} run {top_k} of "
                    f"{experts} experts a layer; give {top_k} to {experts - 1}"
                )
        spread = (times * top_k for times in MULTIPLES)
        found = self.budgets or tuple(each for each in spread if each < experts)
        if not found:
            raise ConfigError(
                f"--budget: {about.model} has {experts} experts a layer, of which a "
                f"token runs {top_k}; name budgets from {top_k} to {experts - 1}"
            )
        return found

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
