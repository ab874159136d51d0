"""A log says how far work is, now and then; a terminal shows a bar."""

import io

import pytest
from rich.console import Console

from evict_profile import progress
from evict_profile.progress import progress_bar


def shown(terminal):
    """What a console gets while two of five pieces are done."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200)
    with progress_bar(console) as bar:
        bar.say("beginning")
        bar.show("4 of 5", 4, 1)
        bar.show("5 of 5", 5, 0)
    return text.getvalue()


def test_a_log_gets_a_line_at_once_and_then_seldom():
    """The second piece comes within fifteen seconds of the first."""
    lines = shown(terminal=False).splitlines()
    assert lines == ["beginning", "4 of 5"]


def test_a_log_gets_every_line_that_is_due(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    lines = shown(terminal=False).splitlines()
    assert lines[-1] == "5 of 5"
    assert len(lines) == 3


@pytest.mark.parametrize("terminal", [False, True])
def test_a_text_with_brackets_is_shown_as_it_is(terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200)
    words = "no kernel in [/opt/torch/lib]"
    with progress_bar(console) as bar:
        bar.say(words)
        bar.show(f"{words}, and left", 0, 1)
    assert words in text.getvalue()
    assert f"{words}, and left" in text.getvalue()


def test_a_terminal_gets_a_bar():
    text = shown(terminal=True)
    assert "beginning" in text
    assert "5 of 5" in text
