"""One self-contained HTML file: no script, nothing loaded, light and dark."""

from collections.abc import Callable
from pathlib import Path

from evict_profile.fit.fitted import Fitted
from evict_profile.io import write_text
from evict_profile.report import prose, sections
from evict_profile.report.html import Markup, join, tag
from evict_profile.report.provenance import provenance
from evict_profile.report.style import CSS
from evict_profile.report.view import View
from evict_profile.table import CostTable

Section = Callable[[View], Markup]

SECTIONS: dict[str, tuple[str, Section]] = {
    "surface": ("Cost over tokens and experts", sections.surface),
    "width": ("Cost against n, forced and routed", sections.width),
    "staircase": ("The staircase: what a step costs", sections.staircase),
    "residuals": ("Where the fit errs", sections.residuals),
    "comparison": ("Against simpler models", sections.comparison),
    "drift": ("Did the machine hold still?", sections.drift),
    "nuisance": ("Does the split over experts matter?", sections.nuisance),
    "bandwidth": ("Is the slope a bandwidth?", sections.bandwidth),
    "provenance": ("Where the numbers come from", provenance),
}
"""Anchor, heading and content of each section below the headline."""


def write_report(fitted: Fitted, table: CostTable, path: Path) -> None:
    """Draw and tell a fitted run; the folder of `path` is made if it is missing.

    Raises:
        StoreError: the file cannot be written.
    """
    text = page(View(fitted, table))
    write_text(text, path)


def page(view: View) -> str:
    """The whole document."""
    title = prose.title(view)
    top = tag(
        "header",
        tag("h1", title, id="headline"),
        tag("p", prose.subtitle(view), kind="quiet"),
        sections.headline(view),
        _contents(),
    )
    return document(title, top, join(_section(name, view) for name in SECTIONS))


def document(title: str, top: Markup, body: Markup) -> str:
    """A page of this look: what stands above its sections, and the sections."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', title)}<style>{CSS}</style></head>\n"
        f"<body>{tag('main', top, body)}</body></html>\n"
    )


def _contents() -> Markup:
    links = (tag("a", head, href=f"#{name}") for name, (head, _) in SECTIONS.items())
    return tag("nav", join(links))


def _section(name: str, view: View) -> Markup:
    heading, content = SECTIONS[name]
    return tag("section", tag("h2", heading), content(view), id=name)
