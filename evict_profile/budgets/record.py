"""Recording replies under expert budgets: a runner decodes, and says how far off.

What static rankings and budgets per layer need is learnt first, behind other prompts,
and kept with the recording: so it goes on with the same after an interruption, and a
server can be given what was found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from evict_profile.budgets.allocation import allocate, falling
from evict_profile.budgets.plan import BudgetKey, BudgetPlan
from evict_profile.budgets.schema import BUDGETS, COLUMNS
from evict_profile.budgets.settings import (
    ALL,
    LAYERS,
    MASS,
    NONE,
    ORACLE,
    PATH,
    SQRT_PATH,
    SQRT_TOP_K,
    STATIC,
    TOP_K,
    TRUNCATION,
    Setting,
)
from evict_profile.errors import RunnerError
from evict_profile.signed import Facts
from evict_profile.sweep.client import Message
from evict_profile.traces.recording import (
    RUNNER,
    Pace,
    Recording,
    State,
    carry_out,
)

EXPONENTS = {PATH: 1.0, SQRT_PATH: 0.5, SQRT_TOP_K: 0.5, ALL: 0.5}
"""Of path probability, as a token's weight in the ranking; 0 for other rules."""
RANKINGS = {STATIC: "kept", ORACLE: "oracle", TOP_K: "top-k"}
RANKINGS |= {SQRT_TOP_K: "top-k", ALL: "top-k"}
"""What ranks experts; "mass" for other rules."""

LEARNING_TOKENS = 32
LEARNING_MULTIPLES = (2, 4, 8)
"""Budgets that one layer alone is given, in experts that one token runs."""

ANSWERS = {"expert_mass": "mass", "budget_kl": "kl", "clock_routing": "routing_us"}
"""What each question before the replies must be answered with."""

MakeAsk = Callable[[], Message]


class BudgetRecording(Recording[BudgetPlan]):
    """A budget recording in progress."""

    form = BUDGETS

    def prepare(self) -> Iterator[State]:
        """Learn what the rules need, then time the routing of each setting."""
        asks = {**self._lessons(), **self._clocks()}
        todo = {name: a for name, a in asks.items() if self.store.note(name) is None}
        pace = Pace(len(todo), len(asks) - len(todo), "preparations")
        for name, ask in todo.items():
            self.store.keep_note(name, self._answer(ask()))
            yield pace.after(name)

    def _answer(self, ask: Message) -> Message:
        """What the runner answers, if it answers what was asked."""
        answer, field = self.engine.ask(ask), ANSWERS[ask["do"]]
        if field not in answer:
            raise RunnerError(
                f"the runner answered {ask['do']} without {field}; see "
                "docs/how-to/budgets.md"
            )
        return answer

    def _lessons(self) -> Mapping[str, MakeAsk]:
        """What is to be learnt, by the name it is kept under."""
        rules = {rule for rule, _ in self.plan.settings()}
        found: dict[str, MakeAsk] = {}
        if STATIC in rules:
            found["mass"] = lambda: {"do": "expert_mass", **self._behind()}
        if rules & {LAYERS, ALL}:
            for budget in self._alone:
                for layer in range(self.about.layers):
                    found[_lesson_of(budget, layer)] = partial(
                        self._one_layer, budget, layer
                    )
        return found

    def _one_layer(self, budget: int, layer: int) -> Message:
        """The damage that one layer does which alone has a budget."""
        per_layer = [self.about.experts] * self.about.layers
        per_layer[layer] = budget
        named = {"per_layer": per_layer, "mode": "substitution", "ranking": "top-k"}
        return {
            "do": "budget_kl",
            **self._behind(),
            **named,
            "exponent": EXPONENTS[ALL],
            "kept": None,
        }

    def _behind(self) -> Message:
        """The text that is learnt from."""
        return {
            "workloads": self.plan.workloads,
            "prompts": self.plan.prompts,
            "learn_from": min(self.plan.learning_prompts, self.plan.prompts),
            "tokens": LEARNING_TOKENS,
        }

    def _clocks(self) -> Mapping[str, MakeAsk]:
        """What is to be timed, by the name it is kept under."""
        return {
            _clock_of(rule, budget): partial(self._routing, _timed(rule), budget)
            for rule, budget in self.plan.settings()
            if rule != NONE
        }

    def _routing(self, rule: str, budget: int) -> Message:
        return {"do": "clock_routing", **self._request(rule, budget)}

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
        return rows_of(key, self.engine.ask(ask).get("steps", []))

    def notes(self) -> Facts:
        """The settings, and what they rest on."""
        settings = [self._setting(*pair) for pair in self.plan.settings()]
        learnt = {name: self.store.note(name) for name in self._lessons()}
        return {"settings": [vars(each) for each in settings], "learnt": learnt}

    def _setting(self, rule: str, budget: int) -> Setting:
        clock = self.store.note(_clock_of(rule, budget))
        routing_us = clock["routing_us"] if clock else 0.0
        return Setting(rule, budget, self._per_layer(rule, budget), routing_us)

    def _request(self, rule: str, budget: int) -> Message:
        """A setting as the runner is told."""
        return {
            "per_layer": None if rule == NONE else self._per_layer(rule, budget),
            "mode": "truncation" if rule == TRUNCATION else "substitution",
            "ranking": RANKINGS.get(rule, "mass"),
            "exponent": EXPONENTS.get(rule, 0.0),
            "kept": self._static(budget) if rule == STATIC else None,
        }

    def _static(self, budget: int) -> list[list[int]]:
        """The experts of each layer that got most on other text."""
        return [largest(layer, budget) for layer in self._note("mass")["mass"]]

    def _per_layer(self, rule: str, budget: int) -> tuple[int, ...]:
        layers, least = self.about.layers, min(self._alone)
        if rule not in (LAYERS, ALL) or budget <= least:
            return (budget,) * layers
        return allocate(self._losses, layers * budget, least)

    @cached_property
    def _losses(self) -> Sequence[Sequence[float]]:
        """What each layer loses, by its budget."""
        layers = range(self.about.layers)
        kl = {
            budget: [self._note(_lesson_of(budget, layer))["kl"] for layer in layers]
            for budget in self._alone
        }
        return falling(kl, self.about.experts)

    @property
    def _alone(self) -> tuple[int, ...]:
        """Budgets of a layer while it alone has one, the smallest first."""
        spread = (times * self.about.top_k for times in LEARNING_MULTIPLES)
        found = tuple(each for each in spread if each < self.about.experts)
        return found if len(found) > 1 else (self.about.top_k, self.about.experts)

    def _note(self, name: str) -> Facts:
        found = self.store.note(name)
        assert found is not None, f"{name} is learnt before any reply"
        return found


def rows_of(key: BudgetKey, steps: Sequence[Message]) -> pa.Table:
    """One row a step.

    Raises:
        RunnerError: a step without a field, or with one of another type.
    """
    try:
        rows = [{**vars(key), **step} for step in steps]
        return pa.Table.from_pylist(
            [{name: row[name] for name in COLUMNS.names} for row in rows], COLUMNS
        )
    except KeyError as error:
        raise RunnerError(
            f"the runner answered a step without {error.args[0]}; a step of a budget "
            f"recording needs {', '.join(COLUMNS.names[5:])}"
        ) from error
    except (pa.ArrowException, TypeError) as error:
        raise RunnerError(
            f"the runner answered a step that is none ({error}); see "
            "docs/how-to/budgets.md"
        ) from error


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


def largest(mass: Sequence[float], count: int) -> list[int]:
    """Where the largest stand; of equals the first."""
    order = sorted(range(len(mass)), key=lambda expert: (-mass[expert], expert))
    return sorted(order[:count])


def _clock_of(rule: str, budget: int) -> str:
    return f"clock-routing-{_timed(rule)}-{budget}"


def _timed(rule: str) -> str:
    """Whose routing is timed for a rule's: what nobody can run takes as mass does."""
    return MASS if rule == ORACLE else rule


def _lesson_of(budget: int, layer: int) -> str:
    return f"layer-{layer}-{budget}"
