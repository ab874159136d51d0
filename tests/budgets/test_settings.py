"""Rules have names, and a setting is a rule at a budget."""

import pytest

from evict_profile.budgets.schema import (
    DEPLOYABLE,
    MASS,
    NONE,
    ORACLE,
    RULES,
    SQRT_TOP_K,
    Setting,
)


@pytest.mark.parametrize(
    ("rule", "name"),
    [(NONE, "none"), (MASS, "mass 16"), (SQRT_TOP_K, "sqrt-path+top-k 16")],
)
def test_a_setting_is_named_by_rule_and_budget(rule: str, name: str) -> None:
    """None has no number beside it."""
    assert Setting(rule, 16, (16,) * 3).name == name


def test_all_but_the_yardsticks_can_be_deployed() -> None:
    """The oracle knows what nobody can; none is no budget."""
    assert set(RULES) - set(DEPLOYABLE) == {NONE, ORACLE}
    assert next(iter(RULES)) == NONE


def test_a_name_with_a_plus_adds_up_rules() -> None:
    """Each part is a rule by itself."""
    for rule in RULES:
        assert set(rule.split("+")) <= set(RULES)
