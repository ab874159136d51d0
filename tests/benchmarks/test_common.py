"""What all scripts of benchmarks/ do with a user's mistakes."""

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.common import Answer, command, count, restart_on_one_thread
from evict_profile.errors import ConfigError, DataError
from evict_profile.runner import QUIET_CPU
from runners.protocol import Refusal

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = [
    "benchmarks/sglang_serving.py --model tiny --sweep tiny --table no --out OUT",
    "examples/small_world/export_gguf.py nowhere OUT",
]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a script as Python does one that is named by its path; it must refuse.

    In this process: to load torch takes longer than all else.
    """
    monkeypatch.chdir(tmp_path)
    # Else some begin anew in a process that has them.
    for name, value in QUIET_CPU.items():
        monkeypatch.setenv(name, value)

    def run(words):
        script = ROOT / words[0]
        monkeypatch.syspath_prepend(script.parent)
        monkeypatch.setattr(sys, "argv", [str(script), *words[1:]])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == 2
        assert "error: " in capsys.readouterr().err

    return run


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_a_sentence(words, tmp_path, refused):
    """Exit code 2, no traceback, nothing written."""
    refused(words.replace("OUT", str(tmp_path / "out.json")).split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [ConfigError("fix it"), Refusal("infeasible", "fix it")]
)
def test_our_errors_end_a_command(error, capsys):
    """With their sentence and exit code 2; a defect keeps its traceback."""

    def failing(words):
        raise KeyError("hinge") if words else error

    main = command(failing)
    assert main([]) == 2
    assert capsys.readouterr().err == "error: fix it\n"
    with pytest.raises(KeyError):
        main(["defect"])


def test_a_restart_runs_the_same_command(monkeypatch):
    """A package run with -m is no script of its path."""
    asked = [sys.executable, "-m", "benchmarks.known_truths", "--sweeps", "8"]
    ran: list[list[str]] = []
    monkeypatch.delenv(next(iter(QUIET_CPU)), raising=False)
    monkeypatch.setattr(sys, "orig_argv", asked)
    monkeypatch.setattr(os, "execve", lambda _, words, __: ran.append(words))
    restart_on_one_thread()
    assert ran == [asked]


@pytest.mark.parametrize("text", ["0", "x"])
def test_a_number_out_of_range_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=repr(text)):
        count(text)


def test_an_answer_takes_its_name_when_all_is_there(tmp_path):
    """Until then an older one stays, with what is known beside it."""
    out = tmp_path / "out.json"
    out.write_text("older")
    answer = Answer(out, [])
    answer.keep([1])
    assert out.read_text() == "older"
    assert json.loads(answer.partly.read_text()) == [1]
    answer.write([1, 2])
    assert json.loads(out.read_text()) == [1, 2]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["out.json", "out.json.partly"])
def test_an_answer_changes_nothing_that_is_read(tmp_path, name):
    """Neither under its own name nor under that of what is known so far."""
    read = tmp_path / name
    read.write_text("read")
    with pytest.raises(DataError, match="reads"):
        Answer(tmp_path / "out.json", [read])
    assert read.read_text() == "read"
