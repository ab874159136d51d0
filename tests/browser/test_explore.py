"""The page of many tables computes in a browser what `advise` computes here."""

import re
import shlex
from pathlib import Path

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.io import data_root
from evict_profile.report.explore import explore_page
from evict_profile.table import CostTable, tables_in

pytestmark = pytest.mark.browser
OUTSIDE_RECORD = {"model": "deepseek-v3", "gpu": "NVIDIA H200", "batch": "64"}
MEASURED = {
    "model": "qwen3-30b-a3b",
    "gpu": "Intel(R) Xeon(R) Processor @ 2.50GHz avx512f",
    "batch": "4",
}


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    path = tmp_path_factory.mktemp("explore") / "explore.html"
    found = tables_in([data_root() / "cost_tables"])
    path.write_text(explore_page(each.table for each in found if each.table))
    return path.as_uri()


def advised(page):
    """What the command on the page computes, of each draft length."""
    _, _, table, _, rate, _, batch, *level = shlex.split(
        page.locator("#command").inner_text()
    )
    level_ms = float(level[1]) if level else None
    found = CostTable.load(Path(table))
    advice = Advisor.of(found, of_rate(float(rate)), level_ms=level_ms)
    return advice.at(int(batch))


def assert_agrees(page):
    advice = advised(page)
    shown = page.locator("tbody tr").all_inner_texts()
    for way, row in zip(advice.ways[1:], shown, strict=True):
        numbers = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", row)]
        speed = way.speed
        computed = [way.levels, way.committed, way.ratio]
        computed += [speed.value, speed.low, speed.high]
        assert numbers == pytest.approx(computed, abs=0.0051)
    answer = page.locator("#answer").inner_text()
    best = advice.best
    if not best.levels:
        assert answer.startswith("Do not speculate")
        return
    assert answer.startswith(f"K = {best.levels}: {best.speed.value:.2f} times")


def open_at(page, explored, **choice):
    page.goto(f"{explored}#" + "&".join(f"{k}={v}" for k, v in choice.items()))
    page.locator("summary").click()


@pytest.mark.parametrize(
    "choice",
    [{"model": "qwen3-30b-a3b", "gpu": "NVIDIA H200"}, OUTSIDE_RECORD, MEASURED],
    ids=["near the record", "far from it", "measured"],
)
def test_a_moved_slider_changes_the_answer_to_what_advise_computes(
    page, explored, choice
):
    open_at(page, explored, **choice)
    assert page.locator("#gpu").input_value() == choice["gpu"]
    assert_agrees(page)
    for slider, key in (("#accept", "Home"), ("#accept", "End"), ("#level", "End")):
        before = page.locator("tbody").inner_text()
        page.locator(slider).press(key)
        assert page.locator("tbody").inner_text() != before
        assert_agrees(page)


def test_the_address_keeps_the_choice(page, explored):
    open_at(page, explored, **OUTSIDE_RECORD)
    page.locator("#accept").press("End")
    answer, address = page.locator("#answer").inner_text(), page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.locator("#model").input_value() == OUTSIDE_RECORD["model"]
    assert page.locator("#answer").inner_text() == answer


def test_the_flags_draft_what_the_answer_says(page, explored):
    open_at(page, explored, model="qwen3-30b-a3b", gpu="NVIDIA H200")
    drafts = advised(page).best.levels
    flags = page.locator("#flags").inner_text()
    assert f"--speculative-num-steps {drafts} " in flags


def test_every_control_is_reached_by_tab_and_has_a_name(page, explored):
    open_at(page, explored)
    page.locator("#model").focus()
    for name in ("model", "gpu", "table", "accept", "batch", "level"):
        assert page.evaluate("document.activeElement.id") == name
        assert page.evaluate("document.activeElement.labels.length") == 1
        page.keyboard.press("Tab")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window_and_colours_follow_the_reader(
    page, explored, scheme
):
    page.emulate_media(color_scheme=scheme)
    open_at(page, explored)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    colour = "getComputedStyle(document.body).backgroundColor"
    red = int(re.findall(r"\d+", page.evaluate(colour))[0])
    assert (red > 128) == (scheme == "light")
