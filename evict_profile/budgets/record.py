"""Recording replies under expert budgets: a runner decodes, and says how far off.

What static rankings and budgets per layer need is learnt first, behind other prompts,
and kept with the recording: so it goes on with the same after an interruption, and a
server can be given what was found.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from evict_profile.budgets.allocation import allocate, worth_of_mass
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
from evict_profile.traces.recording import RUNNER, Recording, carry_out

EXPONENTS = {PATH: 1.0, SQRT_PATH: 0.5, SQRT_TOP_K: 0.5, ALL: 0.5}
"""Of path probability, as a token's weight in the ranking; 0 for other rules."""
RANKINGS = {STATIC: "kept", ORACLE: "oracle", TOP_K: "top-k"}
RANKINGS |= {SQRT_TOP_K: "top-k", ALL: "top-k"}
"""What ranks experts; "mass" for other rules."""

LEARNING_TOKENS = 32


class BudgetRecording(Recording[BudgetPlan]):
    """A budget recording in progress."""

    form = BUDGETS

    def prepare(self) -> Iterator[None]:
        """Learn, then time the routing of each setting."""
        if self.store.note("learnt") is None:
            self.store.keep_note("learnt", self._learn())
            yield
        for rule, budget in self.plan.settings():
            name = _clock_of(rule, budget)
            if rule == NONE or self.store.note(name):
                continue
            ask = {"do": "clock_routing", **self._request(_timed(rule), budget)}
            self.store.keep_note(name, self.engine.ask(ask))
            yield

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
        return {"settings": [vars(each) for each in settings], "learnt": self._learnt}

    def _setting(self, rule: str, budget: int) -> Setting:
        clock = self.store.note(_clock_of(rule, budget))
        routing_us = clock["routing_us"] if clock else 0.0
        return Setting(rule, budget, self._per_layer(rule, budget), routing_us)

    def _request(self, rule: str, budget: int) -> Message:
        """A setting as the runner is told."""
        static = rule == STATIC
        return {
            "per_layer": None if rule == NONE else self._per_layer(rule, budget),
            "mode": "truncation" if rule == TRUNCATION else "substitution",
            "ranking": RANKINGS.get(rule, "mass"),
            "exponent": EXPONENTS.get(rule, 0.0),
            "kept": [largest(m, budget) for m in self._learnt["mass"]]
            if static
            else None,
        }

    def _per_layer(self, rule: str, budget: int) -> tuple[int, ...]:
        layers = self.about.layers
        if rule not in (LAYERS, ALL):
            return (budget,) * layers
        curves, least = self._learnt["curve"], self.about.top_k
        worth = worth_of_mass(self._learnt["kl"], curves, self._alone)
        return allocate(curves, worth, layers * budget, least)

    @cached_property
    def _learnt(self) -> Facts:
        found = self.store.note("learnt")
        assert found is not None, "learnt before any reply"
        return found

    def _learn(self) -> Facts:
        ask = {
            "do": "learn_budgets",
            "workloads": self.plan.workloads,
            "prompts": self.plan.prompts,
            "learn_from": min(self.plan.learning_prompts, self.plan.prompts),
            "tokens": LEARNING_TOKENS,
            "least": self._alone,
        }
        return self.engine.ask(ask)

    @property
    def _alone(self) -> int:
        """Experts of a layer while it alone has a budget: few enough to be felt."""
        return max(self.about.top_k, self.about.experts // 4)


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
            f"the runner answered a step that is none ({error}); see docs/budgets.md"
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
    return f"routing-{_timed(rule)}-{budget}"


def _timed(rule: str) -> str:
    """Whose routing is timed for a rule's: what nobody can run takes as mass does."""
    return MASS if rule == ORACLE else rule
