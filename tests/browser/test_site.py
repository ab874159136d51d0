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
