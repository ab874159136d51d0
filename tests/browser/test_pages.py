"""Reports fit a screen, show values on hover, and mark what goes on beyond an edge."""

import pytest

from evict_profile.fit.fitted import fitted_of_table
from evict_profile.io import data_root
from evict_profile.report.cost_page import write_report
from evict_profile.report.public import page_of

TABLES = data_root() / "cost_tables"
MEASURED = "intel-xeon-processor-2.50ghz-avx512f/qwen3-30b-a3b/torch-moe/1.2.1.json"
ESTIMATED = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json"
BEYOND = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    write_report(*fitted_of_table(TABLES / MEASURED), folder / "measured.html")
    (folder / "estimated.html").write_text(page_of(TABLES / "composed" / ESTIMATED))
    return folder


@pytest.mark.parametrize("name", ["measured", "estimated"])
def test_nothing_leaves_the_screen_unless_its_edge_fades(page, files, name):
    page.goto((files / f"{name}.html").as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    assert page.evaluate(BEYOND) <= 0
    faded = "e => getComputedStyle(e).backgroundImage.includes('gradient')"
    assert all(each.evaluate(faded) for each in page.query_selector_all(".scroll"))


def test_a_point_of_the_first_drawing_shows_its_numbers(page, files):
    page.goto((files / "measured.html").as_uri())
    shown = page.locator("svg >> nth=0").locator("title").all_text_contents()
    assert "n = 64, U = 8: 635 ms" in shown, shown


def test_letters_of_a_drawing_are_at_least_eight_pixels_high(page, files):
    page.goto((files / "estimated.html").as_uri())
    high = """all => Math.min(...all.map(each =>
        parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().d))"""
    assert page.eval_on_selector_all("svg text", high) >= 8.0
