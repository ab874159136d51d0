"""SVGs that follow the page's colours."""

from markupsafe import Markup

from evict_profile.report.render import colours
from evict_profile.report.style import ACCENT, VARIABLES, canvas, inline_svg


def drawing(name: str = "one") -> Markup:
    """One line."""
    with canvas(3.0, 2.0) as figure:
        figure.subplots().plot([1, 2], [3, 4], "o-", color=ACCENT)
    return inline_svg(figure, name, "a <line>")


def test_stand_ins_become_variables() -> None:
    """No colour is fixed in a drawing."""
    assert "var(--accent)" in drawing()
    assert ACCENT not in drawing()


def test_a_label_is_escaped() -> None:
    """It holds names of workloads."""
    assert 'aria-label="a &lt;line&gt;"' in drawing()


def test_two_drawings_share_no_id() -> None:
    """The same drawing under two names can stand on one page."""
    first, second = drawing("a"), drawing("b")
    assert 'id="a-' in first
    assert 'id="a-' not in second


def test_drawing_repeats_to_the_byte() -> None:
    """Ids do not come from a clock or a random salt."""
    assert drawing() == drawing()


def test_both_modes_set_every_variable() -> None:
    """A colour missing in one mode would be black on black."""
    assert all(colours().count(f"{name}:") == 2 for name in VARIABLES.values())
