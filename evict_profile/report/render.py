"""Words stand in templates: those of pages (.html.j2) and of screens (.txt.j2).

A page is one self-contained HTML file with nothing to load. What its template is given
is escaped unless it is `Markup`, as drawings are. A name that a template misspells is
an error.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from rich.console import Console

from evict_profile.io import say
from evict_profile.report.numbers import counted, spread, three_digits, unit_for
from evict_profile.report.tables import as_text

_TEMPLATES = Environment(
    loader=PackageLoader("evict_profile.report"),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    "as": format,
    "as_text": as_text,
    "counted": counted,
    "latency": lambda us: unit_for(us).of(us),
    "spread": spread,
    "three_digits": three_digits,
}


def render(template: str, **given: Any) -> str:
    """A whole page."""
    return _TEMPLATES.get_template(template).render(given)


def show(console: Console, template: str, **given: Any) -> None:
    """A screen, printed as it is."""
    say(console, render(template, **given).strip())


def colours() -> str:
    """The style sheet that gives each colour a value in light and one in dark."""
    return _TEMPLATES.get_template("colours.css").render()
