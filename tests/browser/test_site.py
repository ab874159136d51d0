"""The built documentation without a network; `make docs` builds it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
SITE = Path(__file__).parents[2] / "build" / "site"


@pytest.mark.parametrize(
    "name",
    [
        ".",
        "build/architecture",
        "build/concepts",
        "explanation/lossless",
        "explanation/sglang-internals",
        "explanation/evict",
        "reference/cli",
    ],
)
def test_a_page_is_whole_without_a_network(page, name):
    """The fixture refuses requests; pictures are there, and formulas have a layout."""
    page.goto((SITE / name / "index.html").as_uri())
    assert page.evaluate("[...document.images].every(each => each.naturalWidth > 0)")
    heights = "[...document.querySelectorAll('math')].map(each => each.clientHeight)"
    assert all(page.evaluate(heights))
    assert not page.locator(".mermaid, .arithmatex").count()


def test_a_fraction_is_higher_than_a_line(page):
    page.goto((SITE / "explanation/evict/index.html").as_uri())
    boxes = [page.locator(name).first.bounding_box() for name in ("mfrac", "mi")]
    assert boxes[0]["height"] > 1.5 * boxes[1]["height"]


CUT = """() => [...document.querySelectorAll('.md-content table')].filter(each => {
    const around = each.closest('.md-typeset__scrollwrap') ?? each.parentElement;
    const scrolls = ['auto', 'scroll'].includes(getComputedStyle(around).overflowX);
    return each.getBoundingClientRect().right > innerWidth && !scrolls;
}).map(each => each.innerText.slice(0, 60))"""
BEYOND = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_tables_fit_or_scroll_on_every_page(page):
    """No page is wider than its window, and a table that is scrolls by itself."""
    built = sorted(SITE.rglob("index.html"))
    assert built
    for file in built:
        page.goto(file.as_uri())
        assert page.evaluate(BEYOND) <= 0, file
        assert page.evaluate(CUT) == [], file
