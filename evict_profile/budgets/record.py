"""Recording replies under expert budgets: a runner decodes, and says how far off.

What static rankings and budgets per layer need is learnt first, behind other prompts,
and kept with the recording: so it continues with the same after an interruption, and a
server can be given what was learnt.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from evict_profile.budgets.allocation import allocate, fit_losses
from evict_profile.budgets.schema import (
    BUDGETS,
    COLUMNS,
    MASS,
    NONE,
    ORACLE,
    RULES,
    SQRT_TOP_K,
    STATIC,
    Setting,
)
from evict_profile.errors import ConfigError, RunnerError
from evict_profile.records import Facts, to_mapping
from evict_profile.runner import Message
from evict_profile.traces.recording import (
    RUNNER,
    Recording,
    RecordingPlan,
    carry_out,
    rows_of,
)
from evict_profile.traces.trace import About

DEFAULT_RULES = (MASS, SQRT_TOP_K)
"""The paper's rule, and the one that diverged least on the small world."""

MULTIPLES = (2, 3, 4, 6, 8, 12)
"""Budgets by default, in experts that one token runs."""

LEARNING_TOKENS = 32
LEARNING_MULTIPLES = (2, 4, 8)
"""Budgets that one layer alone is given, in experts that one token runs."""


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
        setting = self.rule if self.rule == NONE else f"{self.rule} {self.budget}"
        return f"{setting}: {self.workload}, prompt {self.prompt}, {kind}"


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
        """This plan on a world, which has so many prompts of each workload.

        Raises:
            ConfigError: the world has no such workload, too few prompts, or layers
                that cannot keep a budget.
        """
        plan = super().within(available, about)
        return replace(
            plan,
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


class BudgetRecording(Recording[BudgetPlan]):
    """A budget recording in progress."""

    form = BUDGETS

    def notes(self) -> Mapping[str, Callable[[], Facts]]:
        """Clocks, then what the rules need, then the routing of each setting."""
        return {**super().notes(), **self._lessons(), **self._routing_clocks()}

    def reply(self, key: BudgetKey) -> pa.Table:
        """The steps of one reply."""
        ask: Message = {
            "do": "budget",
            "workload": key.workload,
            "prompt": key.prompt,
            "prompts": self.plan.prompts,
            "tokens": self.plan.tokens,
            "given": key.given,
            **self._request(key.rule, key.budget),
        }
        steps = self.engine.ask(ask).get("steps", [])
        return rows_of(key, steps, COLUMNS, BUDGETS.page)

    def metadata(self) -> Facts:
        """The settings, and what they rest on."""
        settings = [to_mapping(self._setting(*pair)) for pair in self.plan.settings()]
        learnt = {name: self.folder.note(name) for name in self._lessons()}
        return {"settings": settings, "learnt": learnt}

    def _answer(self, field: str, ask: Callable[[], Message]) -> Message:
        """What the runner answers, if it answers what was asked."""
        question = ask()
        answer = self.engine.ask(question)
        if field not in answer:
            raise RunnerError(
                f"the runner answered {question['do']} without {field}; see "
                "docs/how-to/budgets.md"
            )
        return answer

    def _lessons(self) -> Mapping[str, Callable[[], Facts]]:
        """What is to be learnt, by the name it is kept under."""
        rules = [rule for rule, _ in self.plan.settings()]
        lessons: dict[str, Callable[[], Facts]] = {}
        if STATIC in rules:
            mass: Message = {"do": "expert_mass", **self._learning_text()}
            lessons["mass"] = partial(self._answer, "mass", lambda: mass)
        if any(RULES[rule].by_layer for rule in rules):
            for budget in self._learning_budgets:
                for layer in range(self.about.layers):
                    ask = partial(self._one_layer, budget, layer)
                    name = f"layer-{layer}-{budget}"
                    lessons[name] = partial(self._answer, "kl", ask)
        return lessons

    def _one_layer(self, budget: int, layer: int) -> Message:
        """Asks for the divergence where one layer alone has a budget."""
        per_layer = [self.about.experts] * self.about.layers
        per_layer[layer] = budget
        rule = RULES[SQRT_TOP_K]
        return {
            "do": "budget_kl",
            **self._learning_text(),
            "per_layer": per_layer,
            "mode": rule.mode,
            "ranking": rule.ranking,
            "exponent": rule.exponent,
            "kept": None,
        }

    def _learning_text(self) -> Message:
        return {
            "workloads": self.plan.workloads,
            "prompts": self.plan.prompts,
            "learn_from": min(self.plan.learning_prompts, self.plan.prompts),
            "tokens": LEARNING_TOKENS,
        }

    def _routing_clocks(self) -> Mapping[str, Callable[[], Facts]]:
        """What is to be timed, by the name it is kept under."""
        return {
            _clock_name(rule, budget): partial(
                self._answer, "routing_us", partial(self._routing, rule, budget)
            )
            for rule, budget in self.plan.settings()
            if rule != NONE
        }

    def _routing(self, rule: str, budget: int) -> Message:
        return {"do": "clock_routing", **self._request(_timed_rule(rule), budget)}

    def _setting(self, rule: str, budget: int) -> Setting:
        clock = self.folder.note(_clock_name(rule, budget))
        routing_us = clock["routing_us"] if clock else 0.0
        return Setting(rule, budget, self._per_layer(rule, budget), routing_us)

    def _request(self, name: str, budget: int) -> Message:
        """A setting as the runner is told."""
        rule = RULES[name]
        return {
            "per_layer": None if name == NONE else self._per_layer(name, budget),
            "mode": rule.mode,
            "ranking": rule.ranking,
            "exponent": rule.exponent,
            "kept": self._static(budget) if rule.ranking == "kept" else None,
        }

    def _static(self, budget: int) -> list[list[int]]:
        """The experts of each layer that got most on other text."""
        return [largest(layer, budget) for layer in self.folder.note("mass")["mass"]]

    def _per_layer(self, rule: str, budget: int) -> tuple[int, ...]:
        layers, least = self.about.layers, min(self._learning_budgets)
        if not RULES[rule].by_layer or budget <= least:
            return (budget,) * layers
        return allocate(self._losses, layers * budget, least)

    @cached_property
    def _losses(self) -> Sequence[Sequence[float]]:
        """What each layer loses at each budget, from what was learnt."""
        kl = {
            budget: [
                self.folder.note(f"layer-{layer}-{budget}")["kl"]
                for layer in range(self.about.layers)
            ]
            for budget in self._learning_budgets
        }
        return fit_losses(kl, self.about.experts)

    @property
    def _learning_budgets(self) -> tuple[int, ...]:
        """Budgets of a layer while it alone has one, the smallest first."""
        top_k, experts = self.about.top_k, self.about.experts
        budgets = tuple(m * top_k for m in LEARNING_MULTIPLES if m * top_k < experts)
        return budgets if len(budgets) > 1 else (top_k, experts)


def largest(mass: Sequence[float], count: int) -> list[int]:
    """Where the largest stand; of equals the first."""
    order = sorted(range(len(mass)), key=lambda expert: (-mass[expert], expert))
    return sorted(order[:count])


def _clock_name(rule: str, budget: int) -> str:
    return f"clock-routing-{_timed_rule(rule)}-{budget}"


def _timed_rule(rule: str) -> str:
    """Whose routing is timed for a rule's: what nobody can run takes as mass does."""
    return MASS if rule == ORACLE else rule


def record_budgets(
    world: Path,
    out: Path,
    plan: BudgetPlan,
    console: Console,
    python: str | None = None,
    runner: str = RUNNER,
) -> None:
    """Record a plan's replies into a file, or the rest of them.

    Raises:
        ConfigError, StoreError, RunnerError, Interrupted: as `carry_out`.
    """
    carry_out(BudgetRecording, world, out, plan, console, python, runner)
