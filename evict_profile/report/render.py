"""Pages from templates: one self-contained HTML file each, with nothing to load.

What a template is given is escaped unless it is `Markup`, as drawings are. A name that
a template misspells is an error.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from evict_profile.report.numbers import counted, short, spread, unit_for

_PAGES = Environment(
    loader=PackageLoader("evict_profile.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_PAGES.globals["unit_for"] = unit_for
_PAGES.filters |= {
    "as": format,
    "counted": counted,
    "latency": lambda us: unit_for(us).of(us),
    "short": short,
    "spread": spread,
}


def render(template: str, **given: Any) -> str:
    """A whole page."""
    return _PAGES.get_template(template).render(given)


def colours() -> str:
    """The style sheet that gives each colour a value in light and one in dark."""
    return _PAGES.get_template("colours.css").render()
