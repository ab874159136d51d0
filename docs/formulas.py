"""A Markdown extension: formulas become MathML, which browsers draw by themselves."""

import re
from html import unescape

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor

MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
"""A formula as pymdownx.arithmatex leaves it: a span in a line, or a div."""


class Formulas(Postprocessor):
    def run(self, text: str) -> str:
        return MARKED.sub(_as_mathml, text)


class FormulasExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        after_raw_html = 25
        md.postprocessors.register(Formulas(md), "formulas", after_raw_html)


def _as_mathml(found: re.Match[str]) -> str:
    display = "inline" if found[1] == "span" else "block"
    return convert(unescape(found[2]).strip(), display=display)


def makeExtension(**options: object) -> FormulasExtension:  # noqa: N802
    """What Markdown calls when a page's extensions are loaded."""
    return FormulasExtension(**options)
