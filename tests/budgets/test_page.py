"""The page and the terminal, from a synthetic recording."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from evict_profile.budgets.schema import NONE, ORACLE, RULES, STATIC
from evict_profile.budgets.study import BudgetOptions, Study, study
from evict_profile.report.budgets_page import (
    LOOKS,
    MIN_SHARE,
    disagreement,
    page,
    show_study,
)
from tests.budgets.synthetic import both, setting, table_of, write
from tests.report.pages import check_page


def test_the_page_is_whole_and_loads_nothing(studied: Study) -> None:
    """Every section, two drawings a front, no address but of the SVG's own names."""
    text = page(studied)
    check_page(text)
    assert text.count("<svg") == 2 * len(studied.parts)


def test_the_page_says_what_is_advised_and_every_setting(studied: Study) -> None:
    """First what to do, in the terminal's words."""
    text = page(studied)
    assert "No budget keeps that: run without" in text
    for point in studied.whole.front.points:
        assert f"<td>{point.setting.name}</td>" in text


def test_disagreement_keeps_its_interval_upright(studied: Study) -> None:
    """Its low end is the high end of agreement, and none is off the axis."""
    point = studied.whole.front.of(STATIC)[-1]
    found, own = disagreement(point), point.given.agreement
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1.0 - own.value)
    assert disagreement(studied.whole.front.none).value == MIN_SHARE


def test_every_rule_has_a_look_of_its_own() -> None:
    """Also one that was added yesterday."""
    assert set(LOOKS) == set(RULES) - {NONE}
    assert len(set(LOOKS.values())) == len(LOOKS)


def test_names_are_escaped(studied: Study) -> None:
    """A workload is named by whoever recorded it."""
    whole = studied.whole
    odd = replace(whole, front=replace(whole.front, workload="<b>&code"))
    text = page(replace(studied, parts=(whole, odd)))
    assert "<b>&code" not in text
    assert "&lt;b&gt;&amp;code" in text


def test_a_terminal_has_a_line_a_setting(
    studied: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small budgets first, and what checks the recording itself."""
    show_study(Console(), studied)
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if re.match(r" *mass \d", line)]
    assert [line.split()[1] for line in lines] == ["8", "16", "24"]
    assert "Check: without a budget" in said
    assert "code: No budget keeps that" in said


@pytest.mark.parametrize("rules", [(), (ORACLE,), (STATIC,)])
def test_a_recording_of_few_rules_has_a_page(
    rules: tuple[str, ...], table_file: Path, tmp_path: Path
) -> None:
    """Whatever was left out, also all budgets."""
    settings = [setting(NONE), *(setting(rule, 8) for rule in rules)]
    found = [row for each in settings for row in both(each, kl=0.01)]
    path = write(tmp_path / "few.parquet", table_of(found, settings))
    text = page(study(BudgetOptions([path], table_file)))
    assert text.count("<svg") == 2
