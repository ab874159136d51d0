"""The page of a replay, from made-up numbers."""

from dataclasses import replace

import pytest
from rich.console import Console

from evict_profile.fit.export import make_table
from evict_profile.replay.compare import MIXED
from evict_profile.replay.study import ReplayStudy
from evict_profile.report.replay_page import (
    COLOURS,
    bars,
    replay_page,
    show_replay,
)
from evict_profile.traces import TraceInfo
from tests.replay.comparisons import make_comparison
from tests.report.pages import check_page


@pytest.fixture(scope="module")
def study(fitted):
    """Two workloads and their mix; a name to escape; an interval without ends."""
    doubts = {"<b>&code": 0.005, "prose": 0.005, MIXED: float("inf")}
    comparisons = (make_comparison((), own, name) for name, own in doubts.items())
    table = make_table(fitted, "0" * 64)
    return ReplayStudy(table, TraceInfo(), True, 5, tuple(comparisons))


@pytest.fixture(scope="module")
def text(study):
    return replay_page(study)


def test_the_page_is_whole(text):
    check_page(text)
    assert text.count("<svg") == 2 * 3


def test_the_verdict_comes_first(study, text):
    assert text.index(study.summary[-40:]) < text.index("<svg")


def test_the_flags_to_run_are_on_the_page(text):
    assert text.count("<pre>--speculative-num-steps 3</pre>") == 3


def test_bars_have_a_key_of_their_colours_and_show_intervals_on_hover(study):
    drawing = bars(study.comparisons[0], "bars")
    assert all(f">{kind}<" in drawing for kind in COLOURS)
    assert "<title>rate: 1.30 (1.29..1.31) times plain decoding</title>" in drawing


def test_single_workloads_are_folded_beside_their_mix(text):
    assert "<summary>prose, temperature 0, batch 1</summary>" in text
    assert "<h3>mixed, temperature 0, batch 1</h3>" in text


def test_a_terminal_has_each_scenario_within_100_columns(study):
    console = Console(record=True, width=20)
    show_replay(console, study)
    lines = console.export_text().splitlines()
    said = " ".join(" ".join(lines).split())
    for each in study.comparisons:
        assert f"{each.scenario}: {each.advice}. Against plain decoding" in said
    assert study.summary in said
    assert max(map(len, lines)) <= 100


def test_flags_are_printed_over_lines_of_100_columns(study):
    advised = study.comparisons[0].adaptive
    flags = f"EVICT_PROFILE_TABLE={'t' * 60} {'--speculative-num-steps 3 ' * 4}".strip()
    found = replace(study.comparisons[0], adaptive=replace(advised, served_by=flags))
    console = Console(record=True, width=20)
    show_replay(console, replace(study, comparisons=(found,)))
    _, printed = console.export_text().split("rate, by flags:\n")
    assert printed.split("note:")[0].replace("\\\n", "").split() == flags.split()
    assert max(map(len, printed.splitlines())) <= 100
