"""Recording replies under expert budgets: a runner decodes, and says how far off.

What static rankings and budgets per layer need is learnt first, behind other prompts,
and kept with the recording: so it continues with the same after an interruption, and a
server can be given what was learnt.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import pyarrow as pa

from evict_profile.budgets.allocation import allocate, fit_losses
from evict_profile.budgets.plan import BudgetKey, BudgetPlan
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
from evict_profile.errors import RunnerError
from evict_profile.records import Facts, to_mapping
from evict_profile.runner import Message
from evict_profile.stats import Floats
from evict_profile.traces.recording import Recording, rows_of

LEARNING_TOKENS = 32
LEARNING_MULTIPLES = (2, 4, 8)
"""Budgets that one layer alone is given, in experts that one token runs."""


class BudgetRecording(Recording[BudgetPlan]):
    """A budget recording in progress."""

    form = BUDGETS

    def notes(self) -> Mapping[str, Callable[[], Facts]]:
        """Clocks, then what the rules need, then the routing of each setting."""
        clocks = {
            _clock_name(*setting): partial(self._clock_routing, *setting)
            for setting in self.plan.settings()
            if setting[0] != NONE
        }
        return {**super().notes(), **self._to_learn(), **clocks}

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
        learnt = {name: self.folder.note(name) for name in self._to_learn()}
        return {"settings": settings, "learnt": learnt}

    def _to_learn(self) -> Mapping[str, Callable[[], Facts]]:
        """What is to be learnt, by the name it is kept under."""
        rules = [rule for rule, _ in self.plan.settings()]
        asks: dict[str, Callable[[], Facts]] = {}
        if STATIC in rules:
            asks["mass"] = self._expert_mass
        if any(RULES[rule].by_layer for rule in rules):
            for budget in self._learning_budgets:
                for layer in range(self.about.layers):
                    ask = partial(self._kl_of_layer, layer, budget)
                    asks[f"layer-{layer}-{budget}"] = ask
        return asks

    def _expert_mass(self) -> Facts:
        return self._answer("mass", {"do": "expert_mass", **self._learning_text()})

    def _kl_of_layer(self, layer: int, budget: int) -> Facts:
        """The divergence on other text where one layer alone has a budget."""
        per_layer = [self.about.experts] * self.about.layers
        per_layer[layer] = budget
        text = self._learning_text()
        ranked = RULES[SQRT_TOP_K].request(per_layer)
        return self._answer("kl", {"do": "budget_kl", **text, **ranked})

    def _clock_routing(self, rule: str, budget: int) -> Facts:
        """What a setting adds to the routing of a whole tree."""
        request = self._request(_timed_rule(rule), budget)
        return self._answer("routing_us", {"do": "clock_routing", **request})

    def _answer(self, field: str, ask: Message) -> Message:
        answer = self.engine.ask(ask)
        if field not in answer:
            raise RunnerError(
                f"the runner answered {ask['do']} without {field}; see {BUDGETS.page}"
            )
        return answer

    def _learning_text(self) -> Message:
        return {
            "workloads": self.plan.workloads,
            "prompts": self.plan.prompts,
            "learn_from": min(self.plan.learning_prompts, self.plan.prompts),
            "tokens": LEARNING_TOKENS,
        }

    def _setting(self, rule: str, budget: int) -> Setting:
        clock = self.folder.note(_clock_name(rule, budget))
        routing_us = clock["routing_us"] if clock else 0.0
        return Setting(rule, budget, self._per_layer(rule, budget), routing_us)

    def _request(self, rule: str, budget: int) -> Message:
        """A setting as the runner is told; static rules keep what other text used."""
        if rule == NONE:
            return RULES[rule].request(None)
        kept = None
        if RULES[rule].ranking == "kept":
            mass = self.folder.note("mass")["mass"]
            kept = [largest(layer, budget) for layer in mass]
        return RULES[rule].request(self._per_layer(rule, budget), kept)

    def _per_layer(self, rule: str, budget: int) -> tuple[int, ...]:
        layers, least = self.about.layers, min(self._learning_budgets)
        if not RULES[rule].by_layer or budget <= least:
            return (budget,) * layers
        return allocate(self._losses, layers * budget, least)

    @cached_property
    def _losses(self) -> Floats:
        """What each layer loses at each budget, from what was learnt."""
        layers = range(self.about.layers)
        kl = {
            budget: [self.folder.note(f"layer-{i}-{budget}")["kl"] for i in layers]
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
    return sorted(sorted(range(len(mass)), key=lambda e: (-mass[e], e))[:count])


def _clock_name(rule: str, budget: int) -> str:
    return f"clock-routing-{_timed_rule(rule)}-{budget}"


def _timed_rule(rule: str) -> str:
    """Whose routing is timed for a rule's: what nobody can run takes as mass does."""
    return MASS if rule == ORACLE else rule
