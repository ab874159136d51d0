"""A plan names each reply once, and fits its world or is refused."""

import pytest

from evict_profile.budgets.plan import BudgetKey, BudgetPlan
from evict_profile.budgets.schema import RULES
from evict_profile.errors import ConfigError
from evict_profile.traces import About

ABOUT = About(model="tiny", layers=3, experts=64, top_k=4)
AVAILABLE = {"code": 60, "prose": 60}


def within(about: About = ABOUT, **options: object) -> BudgetPlan:
    """A plan on that world."""
    return BudgetPlan(**options).within(AVAILABLE, about)  # type: ignore[arg-type]


def test_budgets_are_spread_by_default() -> None:
    """In multiples of what a token runs, below what a layer has."""
    assert within().budgets == (8, 12, 16, 24, 32, 48)
    assert within(About(experts=24, top_k=4)).budgets == (8, 12, 16)
    assert within(budgets=(5, 63)).budgets == (5, 63)


def test_all_workloads_unless_some_are_named() -> None:
    """In the order of the world, or as named."""
    assert within().workloads == ("code", "prose")
    assert within(workloads=("prose",)).workloads == ("prose",)


def test_none_comes_first_and_once() -> None:
    """At as many experts as there are, whether it is named or not."""
    plan = within(rules=("mass", "none", "path"), budgets=(8, 16))
    assert plan.settings() == [
        ("none", 64), ("mass", 8), ("mass", 16), ("path", 8), ("path", 16),
    ]  # fmt: skip
    assert within(rules=("none",)).settings() == [("none", 64)]


def test_every_rule_has_every_budget() -> None:
    """Each setting once."""
    settings = within(rules=RULES).settings()
    assert len(set(settings)) == len(settings) == 1 + 6 * (len(RULES) - 1)


def test_the_papers_rule_and_the_best_are_recorded_by_default() -> None:
    """All rules take hours."""
    assert [rule for rule, _ in within(budgets=(8,)).settings()] == [
        "none",
        "mass",
        "sqrt-path+top-k",
    ]


def test_every_setting_comes_before_the_next_prompt() -> None:
    """A recording cut short holds some of each, decoded and given."""
    plan = within(prompts=2, rules=("mass",), budgets=(8,), workloads=("code", "prose"))
    replies = list(plan.replies())
    assert replies[:8] == [
        BudgetKey(rule, budget, workload, 0, given)
        for rule, budget in (("none", 64), ("mass", 8))
        for workload in ("code", "prose")
        for given in (False, True)
    ]
    assert [key.prompt for key in replies] == [0] * 8 + [1] * 8
    assert len(set(replies)) == len(replies)


def test_a_reply_says_what_it_is() -> None:
    """As it stands in the progress line."""
    mass, none = BudgetKey("mass", 8, "code", 3, True), BudgetKey("none", 64, "a", 0, 0)
    assert str(mass) == "mass 8: code, prompt 3, given"
    assert str(none) == "none: a, prompt 0, decoded"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompts": 0}, "--prompts 0: must be at least 1"),
        ({"tokens": 0}, "--tokens 0: must be at least 1"),
        ({"depth": -1}, "--depth -1: must be at least 1"),
        ({"topk": 0}, "--topk 0: must be at least 1"),
        ({"nodes": 0}, "--nodes 0: must be at least 1"),
        ({"budgets": (8, 8)}, "--budget has a value twice; give each once"),
        ({"rules": ("path", "path")}, "--rule has a value twice"),
        ({"workloads": ("code", "code")}, "--workload has a value twice"),
        ({"rules": ("best",)}, "--rule best: give one of none, mass, truncation"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], sentence: str) -> None:
    """The option is named."""
    with pytest.raises(ConfigError, match=sentence):
        BudgetPlan(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, 3, 64, 65])
def test_a_budget_that_no_layer_can_keep_is_refused(budget: int) -> None:
    """And so is one that is none; those that can be are said."""
    sentence = f"--budget {budget}: tokens of tiny run 4 of 64 .*; give 4 to 63"
    with pytest.raises(ConfigError, match=sentence):
        within(budgets=(16, budget))


def test_a_workload_that_the_world_lacks_is_refused() -> None:
    """Those that it has are named."""
    with pytest.raises(ConfigError, match="--workload chat: tiny has code, prose"):
        within(workloads=("chat",))


def test_too_many_prompts_are_refused() -> None:
    """Every second one is kept for learning, and replies need room behind them."""
    assert within(prompts=19).prompts == 19
    with pytest.raises(ConfigError, match=r"--prompts 20: .* has text for 19 with"):
        within(prompts=20)
    assert within(prompts=24, tokens=16).prompts == 24


def test_few_experts_need_a_budget_named() -> None:
    """None of those by default would be below all."""
    with pytest.raises(
        ConfigError, match=r"--budget: tiny has 8 experts .* from 4 to 7"
    ):
        within(About(model="tiny", experts=8, top_k=4))
    assert within(About(experts=8, top_k=4), budgets=(6,)).budgets == (6,)
