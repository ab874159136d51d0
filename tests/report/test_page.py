"""The page as a reader's browser gets it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evict_profile.fit.fitted import Fitted
from evict_profile.report.page import SECTIONS, page, write_report
from evict_profile.report.view import View

VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture(scope="session")
def text(view: View) -> str:
    """The plain run's page."""
    return page(view)


@pytest.fixture(scope="session")
def rich_text(rich_view: View) -> str:
    """The page of the run with all that is optional."""
    return page(rich_view)


class _Nesting(HTMLParser):
    """Tags that are open, and the ids seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for key, value in attrs if key == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for key, value in attrs if key == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_loads_nothing(rich_text: str) -> None:
    """No source, link or style reaches outside the file."""
    targets = re.findall(r'(?:src|href|data|action)\s*=\s*"([^"]*)"', rich_text)
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert "@import" not in rich_text
    assert not re.search(r"url\((?!#)", rich_text)


def test_page_runs_nothing(rich_text: str) -> None:
    """No script and no event handler."""
    assert "<script" not in rich_text.lower()
    assert not re.search(r"<[^>]*\son\w+\s*=", rich_text)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_there(text: str, name: str) -> None:
    """Each section has its anchor and its heading."""
    assert re.search(rf'<section id="{name}"><h2>', text)


def test_tags_nest_and_ids_are_unique(rich_text: str) -> None:
    """Every tag that opens closes, and inline drawings do not share ids."""
    parser = _Nesting()
    parser.feed(rich_text)
    assert not parser.open
    assert len(parser.ids) == len(set(parser.ids))


def test_ids_that_are_used_exist(rich_text: str) -> None:
    """Clip paths and markers of the drawings are found under their new names."""
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', rich_text))
    assert used <= set(re.findall(r'\bid="([^"]+)"', rich_text))


def test_names_are_escaped(rich_text: str) -> None:
    """A model's name cannot become markup."""
    assert "&lt;b&gt;&amp;tiny" in rich_text
    assert "<b>&tiny" not in rich_text


def test_dark_mode_has_its_own_colours(text: str) -> None:
    """The page follows the reader's preference, drawings included."""
    assert "@media (prefers-color-scheme:dark)" in text
    assert "stroke: var(--" in text
    assert not re.search(r"#0[12]01[0-9a-f]{2}", text)


def test_same_run_gives_same_page(view: View, text: str) -> None:
    """A page can be compared with another by its bytes."""
    assert page(view) == text


def test_gates_are_told_with_their_sentences(view: View, text: str) -> None:
    """Every gate's own words are on the page."""
    for gate in view.table.gates:
        assert f"{gate.name}: {gate.says}" in text


def test_write_report_makes_the_folder(
    fitted: Fitted, view: View, tmp_path: Path
) -> None:
    """A report can be asked for in a folder that is not there yet."""
    path = tmp_path / "new" / "report.html"
    write_report(fitted, view.table, path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
