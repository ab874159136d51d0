"""Pages as the site renders them: tables, resources, and how many words they have."""

import re
from html.parser import HTMLParser
from pathlib import Path

import markdown
import pytest
import yaml

from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href"}
CODE = {"pre", "code", "math"}


class Page(HTMLParser):
    """The text of a page outside of code, and what a browser loads for the page."""

    def __init__(self, html):
        super().__init__()
        self.html, self.code, self.text, self.loaded = html, [], "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag in LOADED:
            self.loaded.append(dict(attrs).get(LOADED[tag]) or "")
        if tag in CODE:
            self.code.append(tag)

    def handle_endtag(self, tag):
        if tag in CODE:
            self.code.pop()

    def handle_data(self, data):
        self.text += "" if self.code else data


@pytest.fixture(scope="module")
def rendered():
    """Each page by its name, rendered with the extensions of mkdocs.yml."""
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
    options = {}
    for each in listed:
        options.update(each if isinstance(each, dict) else {each: {}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        engine = markdown.Markdown(extensions=[*options], extension_configs=options)
    return {
        str(page.relative_to(ROOT / "docs")): Page(
            engine.reset().convert(page.read_text())
        )
        for page in tracked("docs/*.md")
    }


def test_no_row_of_a_table_is_shown_as_text(rendered):
    assert not [name for name, page in rendered.items() if "|" in page.text]


def test_notes_and_tabs_are_rendered_with_their_text(rendered):
    """Text on the line of a note's title, or at the margin below, is outside of it."""
    for name, page in rendered.items():
        assert not re.search(r"!!!|\?\?\?|===", page.text), name
        assert not re.search(r'(admonition-title">|<summary>).*\s*</d', page.html), name


def test_no_page_loads_anything_from_a_network(rendered):
    loaded = {url: name for name, page in rendered.items() for url in page.loaded}
    assert loaded
    assert not {url: name for url, name in loaded.items() if re.match(r"\w*:?//", url)}


def test_words_of_each_page_are_printed(rendered):
    """`pytest -s` shows them; there is no limit, and code does not count."""
    words = {name: len(page.text.split()) for name, page in rendered.items()}
    for name, count in sorted(words.items(), key=lambda item: item[1]):
        print(f"{count:6,} {name}")
    print(f"{sum(words.values()):6,} words on {len(words)} pages")
    assert all(words.values())
