"""SVGs that follow the page's colours."""

from matplotlib.figure import Figure

from evict_profile.report.style import ACCENT, CSS, DARK, LIGHT, VARIABLES, draw


def paint(figure: Figure) -> None:
    """One line."""
    figure.subplots().plot([1, 2], [3, 4], "o-", color=ACCENT)


def test_stand_ins_become_variables() -> None:
    """No colour is fixed in a drawing."""
    svg = draw("one", "a line", paint, 3.0, 2.0)
    assert "var(--accent)" in svg
    assert ACCENT not in svg


def test_two_drawings_share_no_id() -> None:
    """The same drawing under two names can stand on one page."""
    first, second = (draw(name, "a line", paint, 3.0, 2.0) for name in ("a", "b"))
    assert 'id="a-' in first
    assert 'id="a-' not in second


def test_drawing_repeats_to_the_byte() -> None:
    """Ids do not come from a clock or a random salt."""
    assert draw("a", "x", paint, 3.0, 2.0) == draw("a", "x", paint, 3.0, 2.0)


def test_both_modes_set_every_variable() -> None:
    """A colour missing in one mode would be black on black."""
    assert set(LIGHT) == set(DARK) == set(VARIABLES)
    assert all(CSS.count(f"{name}:") == 2 for name in VARIABLES.values())
