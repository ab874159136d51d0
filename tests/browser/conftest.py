"""Pages in a real browser, at two widths; `make test-browser` runs these tests."""

import importlib.util
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MISSING = "" if CHROMIUM else "no chromium and no google-chrome is on PATH"
if not importlib.util.find_spec("playwright"):
    MISSING = "playwright is not installed here: make test-browser"


def pytest_collection_modifyitems(items):
    """Skip what is here, and say why, where there is no browser."""
    skip = pytest.mark.skip(reason=MISSING)
    for item in items:
        if MISSING and HERE in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield opened
        opened.close()


@pytest.fixture(params=[1280, 390])
def page(browser, request):
    """A page without a network; at its end, what it asked for lay on this machine."""
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    asked, errors = [], []
    opened.on("request", lambda each: asked.append(each.url))
    opened.on("pageerror", lambda each: errors.append(str(each)))
    opened.context.set_offline(True)
    yield opened
    opened.close()
    assert not errors
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
