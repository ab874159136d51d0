"""Pages from templates: self-contained HTML files.

Values are escaped unless they are `Markup`; an unknown name in a template is an error.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from evict_profile.report.numbers import MS, counted, spread

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
    "latency": MS.of,
    "spread": spread,
}


def render(template: str, **given: Any) -> str:
    return _TEMPLATES.get_template(template).render(given)


def colours() -> str:
    return _TEMPLATES.get_template("colours.css").render()
