"""The page of a replay, from made-up numbers."""

import pytest
from rich.console import Console

from evict_profile.replay.cell import MIXED, Place
from evict_profile.replay.memory import HalfLife, Lag, Memory
from evict_profile.replay.mismatch import JUDGED, Mismatch
from evict_profile.replay.study import Misled, Study
from evict_profile.replay.verdict import judge, overall
from evict_profile.report.replay_page import page, show_study
from evict_profile.stats import Estimate
from evict_profile.traces import About
from tests.replay.made_up import make_cell
from tests.report.pages import check_page


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


def test_the_page_is_whole(text: str) -> None:
    """Two drawings a place, and one of wrong tables; no two share an id."""
    check_page(text)
    assert text.count("<svg") == 2 * 3 + 1


def test_the_verdict_comes_first(study: Study, text: str) -> None:
    """Before any drawing."""
    assert text.index(study.says[-40:]) < text.index("<svg")


def test_single_workloads_are_folded_beside_their_mix(text: str) -> None:
    """A reader meets the mix first."""
    assert "<summary>prose, temperature 0, batch 1</summary>" in text
    assert "<h3>mixed, temperature 0, batch 1</h3>" in text


def test_names_are_escaped(text: str) -> None:
    """A workload's name cannot become markup."""
    assert "&lt;b&gt;&amp;code" in text
    assert "<b>&code" not in text


def test_the_worst_mismatch_is_named(text: str) -> None:
    """With its loss."""
    assert "“ratio” with “all costs x 2”, -10.0 % (-15.0 to -5.0)" in text


def test_a_terminal_has_a_line_a_policy(study: Study) -> None:
    """With its setting, never folded, however narrow the terminal."""
    console = Console(record=True, width=20)
    show_study(console, study)
    lines = console.export_text().splitlines()
    assert sum("best fixed width (8 tokens at depth 5)" in line for line in lines) == 3
    assert study.says in lines
