"""What the tables of docs/results.md are made from, and what they are not."""

from pathlib import Path

import pytest

from benchmarks.results import main


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}', "[[1]]"])
def test_what_is_no_replay_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its name, and exit code 2."""
    path = tmp_path / "replay.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert f"error: {path}: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1", '{"key": 1}', '[{"rows": [{}]}]', "[[1]]"])
def test_what_is_no_clock_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of budgets_clock.py neither."""
    replay, clock = tmp_path / "replay.json", tmp_path / "clock.json"
    replay.write_text('{"cells": [], "verdicts": []}')
    clock.write_text(text)
    assert main([str(replay), "--clock", str(clock)]) == 2
    assert f"error: --clock {clock}: " in capsys.readouterr().err
