"""The page of a replay, from made-up numbers."""

import re
from html.parser import HTMLParser

import pytest

from evict_profile.replay.cell import MIXED, Place
from evict_profile.replay.memory import HalfLife, Lag, Memory
from evict_profile.replay.mismatch import JUDGED, Mismatch
from evict_profile.replay.study import Misled, Study
from evict_profile.replay.verdict import judge, overall
from evict_profile.report.replay_page import HEADINGS, page
from evict_profile.stats import Estimate
from evict_profile.traces import About
from tests.replay.made_up import make_cell

VOID = {"meta", "br", "hr", "img", "link", "input"}


@pytest.fixture(scope="module")
def study() -> Study:
    """Two workloads and their mix; a name to escape; an interval without ends."""
    places = [Place("<b>&code", 0.0, 1), Place("prose", 0.0, 1), Place(MIXED, 0.0, 1)]
    cells = tuple(make_cell(place=place) for place in places[:2])
    cells += (make_cell(place=places[2], doubt=float("inf")),)
    verdicts = tuple(judge(cell) for cell in cells)
    loss = Estimate(0.9, 0.85, 0.95)
    misled = tuple(Mismatch(policy, "all costs x 2", loss, loss) for policy in JUDGED)
    memory = Memory(
        (Lag(1, 0.2, 0.3, 0.05), Lag(2, 0.1, 0.2, 0.06)),
        (HalfLife(1.0, loss), HalfLife(2.0, Estimate(1.0, 1.0, 1.0))),
    )
    return Study(
        workload="made up",
        traces="trace.parquet",
        table="1.0.1.json",
        sha256="0" * 64,
        key={"model": "tiny", "gpu": "a test", "engine": "scripted"},
        about=About(),
        dense=True,
        seeds=5,
        cells=cells,
        verdicts=verdicts,
        says=overall(verdicts),
        misled=(Misled(places[2], misled),),
        memory=memory,
        memory_of=places[2],
        other="another on a device",
    )


@pytest.fixture(scope="module")
def text(study: Study) -> str:
    """Its page."""
    return page(study)


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


def test_the_verdict_comes_first(study: Study, text: str) -> None:
    """Before any drawing."""
    assert text.index(study.says[-40:]) < text.index("<svg")


@pytest.mark.parametrize("name", HEADINGS)
def test_every_section_is_there(text: str, name: str) -> None:
    """Each with its anchor and heading."""
    assert re.search(rf'<section id="{name}"><h2>', text)


def test_single_workloads_are_folded_beside_their_mix(text: str) -> None:
    """A reader meets the mix first."""
    assert "<summary>prose, temperature 0, batch 1</summary>" in text
    assert "<h3>mixed, temperature 0, batch 1</h3>" in text


def test_page_loads_and_runs_nothing(text: str) -> None:
    """One file that is whole."""
    targets = re.findall(r'(?:src|href|data|action)\s*=\s*"([^"]*)"', text)
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert "<script" not in text.lower()


def test_tags_nest_and_ids_are_unique(text: str) -> None:
    """Drawings of many places share no id."""
    parser = _Nesting()
    parser.feed(text)
    assert not parser.open
    assert len(parser.ids) == len(set(parser.ids))


def test_names_are_escaped(text: str) -> None:
    """A workload's name cannot become markup."""
    assert "&lt;b&gt;&amp;code" in text
    assert "<b>&code" not in text


def test_no_stand_in_colour_is_left(text: str) -> None:
    """And the reader's mode is followed."""
    assert not re.search(r"#0[12]01[0-9a-f]{2}", text)
    assert "prefers-color-scheme:dark" in text


def test_the_worst_mismatch_is_named(text: str) -> None:
    """With its loss."""
    assert "“ratio” with “all costs x 2”, -10.0 % (-15.0 to -5.0)" in text
