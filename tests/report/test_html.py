"""Escaping by default."""

from evict_profile.report.html import Markup, join, paragraph, table, tag


def test_text_is_escaped() -> None:
    """Names from files cannot become markup."""
    assert tag("p", "<b>&") == "<p>&lt;b&gt;&amp;</p>"


def test_markup_is_kept() -> None:
    """What was built here nests."""
    assert tag("p", tag("b", "x")) == "<p><b>x</b></p>"


def test_attributes_are_escaped() -> None:
    """A quote cannot end an attribute."""
    assert tag("a", "x", href='"onload="') == '<a href="&quot;onload=&quot;">x</a>'


def test_join_keeps_order() -> None:
    """Parts follow one another, numbers as text."""
    assert join([1, Markup("<br>"), "<"]) == "1<br>&lt;"


def test_empty_sentences_are_dropped() -> None:
    """A paragraph has no doubled spaces."""
    assert paragraph("One.", "", "Two.") == "<p>One. Two.</p>"


def test_table_cells_are_escaped() -> None:
    """Rows come from samples, whose reasons are free text."""
    assert "<td>a&lt;b</td>" in table(("x",), [("a<b",)])
