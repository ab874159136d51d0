"""What is true of every page: one file that is whole, and runs and loads nothing."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class _Tags(HTMLParser):
    """Tags that are open, and the ids seen."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for key, value in attrs if key == "id" and value]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(text):
    """Tags nest, ids are unique, links stay inside, and no colour is fixed."""
    assert text.startswith("<!doctype html>")
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert len(tags.ids) == len(set(tags.ids))
    targets = re.findall(r'(?:src|href|data|action)\s*=\s*"([^"]*)"', text)
    assert targets
    assert all(target.startswith("#") for target in targets)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    assert used <= set(tags.ids)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "<script" not in text.lower()
    assert not re.search(r"<[^>]*\son\w+\s*=", text)
    assert "@media (prefers-color-scheme:dark)" in text
    assert not re.search(r"#0[12]01[0-9a-f]{2}", text), "a stand-in colour is left"
    words = re.sub(r"<svg.*?</svg>|<style>.*?</style>", " ", text, flags=re.DOTALL)
    words = re.sub(r"<[^>]*>", " ", words)
    assert not {"nan", "undefined"} & set(words.lower().split())
    for name in re.findall(r'<a href="#([^"]+)">', text):
        assert re.search(rf'<section id="{name}"><h2>\w', text)
