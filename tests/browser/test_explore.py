"""The page of many tables computes in a browser what `advise` computes here."""

import re
import shlex
from pathlib import Path

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.advice.answer import stated_ways
from evict_profile.advice.decide import decide
from evict_profile.io import data_root
from evict_profile.report.explore import explore_page
from evict_profile.stats import WORTHWHILE
from evict_profile.table import CostTable, tables_in

pytestmark = pytest.mark.browser
ESTIMATED = {"model": "deepseek-v3", "gpu": "NVIDIA H200", "batch": "64"}
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
    words = shlex.split(page.locator("#command").inner_text())
    _, _, table, _, rate, _, batch = words
    found = CostTable.load(Path(table))
    return Advisor.of(found, of_rate(float(rate))).at(int(batch))


def assert_agrees(page):
    advice = advised(page)
    shown = page.locator("tbody tr").all_inner_texts()
    for way, row in zip(advice.ways[1:], shown, strict=True):
        numbers = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", row)]
        speed = way.speed
        computed = [way.levels, way.committed, way.ratio.value]
        assert numbers[:3] == pytest.approx(computed, abs=0.0051)
        computed = [speed.value, speed.low, speed.high]
        assert numbers[5:] == pytest.approx(computed, abs=0.0051)
    answer = page.locator("#answer").inner_text()
    best, drafted = advice.best, advice.ways[1:]
    settled = all(way.speed.high < WORTHWHILE for way in drafted)
    settled = best.speed.low > 1.0 if best.levels else settled
    doubt = "Not settled whether drafting pays: " * (not settled)
    gives = f"K = {best.levels}: {best.speed.value:.2f} times"
    none = f"{'Do not speculate: ' * settled}no draft length"
    assert answer.startswith(f"{doubt}{gives if best.levels else none}")
    assert ("probe URL" in page.locator("#flags").inner_text()) == (not settled)


def open_at(page, explored, **choice):
    page.goto(f"{explored}#" + "&".join(f"{k}={v}" for k, v in choice.items()))
    page.locator("summary").click()


def test_a_moved_slider_changes_the_answer_to_what_advise_computes(page, explored):
    open_at(page, explored, **MEASURED)
    assert page.locator("#gpu").input_value() == MEASURED["gpu"]
    assert_agrees(page)
    for key in ("Home", "End", "PageDown"):
        before = page.locator("tbody").inner_text()
        page.locator("#accept").press(key)
        assert page.locator("tbody").inner_text() != before
        assert_agrees(page)


def test_an_estimated_table_answers_in_the_break_evens_of_advise(page, explored):
    open_at(page, explored, **ESTIMATED)
    words = shlex.split(page.locator("#command").inner_text())
    advisor = decide(CostTable.load(Path(words[2])), words[4]).advisor
    [way] = stated_ways(advisor, int(words[6]))
    answer, even = page.locator("#answer").inner_text(), way.break_even.value
    assert f"K = 3 pays where a step commits more than {even:.2f} tokens" in answer
    assert f"{way.committed:.2f}: {way.verdict}" in page.locator("#why").inner_text()
    assert "times plain decoding" not in page.locator("body").inner_text()
    assert "evict-profile import" in page.locator("#flags").inner_text()


def test_the_address_keeps_the_choice(page, explored):
    open_at(page, explored, **ESTIMATED)
    page.locator("#accept").press("End")
    answer, address = page.locator("#answer").inner_text(), page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.locator("#model").input_value() == ESTIMATED["model"]
    assert page.locator("#answer").inner_text() == answer


def test_every_control_is_reached_by_tab_and_has_a_name(page, explored):
    open_at(page, explored)
    page.locator("#model").focus()
    for name in ("model", "gpu", "table", "accept", "batch"):
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
