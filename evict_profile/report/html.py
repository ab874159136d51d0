"""HTML that cannot be broken by a name: text is escaped unless it is Markup."""

from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def safe(content: object) -> Markup:
    """Anything as HTML; all but Markup is escaped."""
    return content if isinstance(content, Markup) else Markup(escape(str(content)))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after another."""
    return Markup("".join(safe(part) for part in parts))


def tag(name: str, *children: object, **attributes: str) -> Markup:
    """One element; write the attribute `class` as `kind`."""
    named = {"class" if k == "kind" else k: v for k, v in attributes.items()}
    written = "".join(f' {key}="{escape(value)}"' for key, value in named.items())
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def paragraph(*sentences: object) -> Markup:
    """A paragraph of the sentences that are not empty."""
    said = [safe(sentence) for sentence in sentences if sentence]
    return tag("p", Markup(" ".join(said)))


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that scrolls sideways on a narrow screen."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    whole = tag("table", tag("thead", top), tag("tbody", *body))
    return tag("div", whole, kind="scroll")


def figure(drawing: Markup, caption: object) -> Markup:
    """A drawing with what it shows and how to read it."""
    frame = tag("div", drawing, kind="scroll")
    return tag("figure", frame, tag("figcaption", caption))


def folded(summary: object, *content: object) -> Markup:
    """Content that opens on a click, without a script."""
    return tag("details", tag("summary", summary), *content)
