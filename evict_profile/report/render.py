"""A page is one self-contained HTML file with nothing to load, made from a template.

What the template is given is escaped unless it is `Markup`, as drawings are. A name
that a template misspells is an error.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from evict_profile.report.numbers import counted, spread, unit_for

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
    "counted": counted,
    "latency": lambda us: unit_for(us).of(us),
    "spread": spread,
}


def render(template: str, **given: Any) -> str:
    """A whole page."""
    return _TEMPLATES.get_template(template).render(given)


def colours() -> str:
    """The style sheet that gives each colour a value in light and one in dark."""
    return _TEMPLATES.get_template("colours.css").render()
