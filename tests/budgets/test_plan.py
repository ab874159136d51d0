"""A plan names each reply once, and fits its world or is refused."""

import pytest

from evict_profile.budgets.plan import BudgetKey, BudgetPlan
from evict_profile.budgets.schema import DEPLOYABLE, NONE, ORACLE, RULES
from evict_profile.errors import ConfigError
from evict_profile.traces import About

ABOUT = About(model="tiny", layers=3, experts=64, top_k=4)
AVAILABLE = {"code": 60, "prose": 60}


def within(about=ABOUT, **options):
    """A plan on that world."""
    return BudgetPlan(**options).within(AVAILABLE, about)  # type: ignore[arg-type]


def test_all_but_the_yardsticks_can_be_deployed():
    """The oracle knows what nobody can; a name with a plus adds up rules."""
    assert set(RULES) - set(DEPLOYABLE) == {NONE, ORACLE}
    assert all(set(rule.split("+")) <= set(RULES) for rule in RULES)


def test_budgets_are_spread_by_default():
    """In multiples of what a token runs, below what a layer has."""
    assert within().budgets == (8, 12, 16, 24, 32, 48)
    assert within(About(experts=24, top_k=4)).budgets == (8, 12, 16)
    assert within(budgets=(5, 63)).budgets == (5, 63)
    assert within(About(experts=8, top_k=4), budgets=(6,)).budgets == (6,)


def test_every_rule_has_every_budget_and_none_comes_first():
    """The paper's rule and the best by default: all rules take hours."""
    plan = within(rules=("mass", "none", "path"), budgets=(8, 16))
    assert plan.settings() == [
        ("none", 64), ("mass", 8), ("mass", 16), ("path", 8), ("path", 16),
    ]  # fmt: skip
    default = within(budgets=(8,)).settings()
    assert default == [("none", 64), ("mass", 8), ("sqrt-path+top-k", 8)]


def test_every_setting_comes_before_the_next_prompt():
    """A recording cut short holds some of each, decoded and given."""
    plan = within(prompts=2, rules=("mass",), budgets=(8,))
    replies = list(plan.replies())
    assert replies[:8] == [
        BudgetKey(rule, budget, workload, 0, given)
        for rule, budget in (("none", 64), ("mass", 8))
        for workload in ("code", "prose")
        for given in (False, True)
    ]
    assert [key.prompt for key in replies] == [0] * 8 + [1] * 8
    assert len(set(replies)) == len(replies)


def test_options_that_cannot_be():
    with pytest.raises(ConfigError, match="--budget has a value twice"):
        BudgetPlan(budgets=(8, 8))
    with pytest.raises(ConfigError, match="--rule best: give one of none, mass, trunc"):
        BudgetPlan(rules=("best",))


@pytest.mark.parametrize("budget", [0, 3, 64, 65])
def test_a_budget_that_no_layer_can_keep_is_refused(budget):
    sentence = f"--budget {budget}: tokens of tiny run 4 of 64 .*; give 4 to 63"
    with pytest.raises(ConfigError, match=sentence):
        within(budgets=(16, budget))


def test_few_experts_need_a_budget_named():
    """None of those by default would be below all."""
    sentence = r"--budget: tiny has 8 experts .* from 4 to 7"
    with pytest.raises(ConfigError, match=sentence):
        within(About(model="tiny", experts=8, top_k=4))


def test_too_many_prompts_are_refused():
    """Every second one is kept for learning, and replies need room behind them."""
    assert within(prompts=19).prompts == 19
    with pytest.raises(ConfigError, match=r"--prompts 20: .* has text for 19 with"):
        within(prompts=20)
    assert within(prompts=24, tokens=16).prompts == 24
