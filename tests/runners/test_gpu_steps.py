"""What becomes of a step's process, and where it runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evict_profile.errors import StoreError
from evict_profile.io import sole_writer
from runners import gpu_steps
from runners.gpu_steps import (
    INTERRUPTED,
    TIME_UP,
    Command,
    Place,
    evict,
    run,
)
from tests.factories import write_run

CTRL_C = (
    # By then we wait for it; sooner, the signal would end the tests.
    "import os, signal, time; time.sleep(1); os.kill(os.getppid(), signal.SIGINT)\n"
)
"""As if typed while the step runs."""

KEEPING = """
import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    print('kept', flush=True)
    time.sleep(0.3)
    print('in peace', flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder that is ours."""
    with sole_writer(tmp_path) as lock:
        yield Place(tmp_path, tmp_path, lock)


def python(code: str) -> Command:
    """A process."""
    return (sys.executable, "-c", code)


def test_the_gates_words_are_known(place: Place) -> None:
    """`evict-profile export` of samples that are all noise."""
    samples = write_run(place.out / "run", noise=0.8).folder
    command = evict("export", str(samples), "--tables", str(place.out / "tables"))
    outcome = run("table", command, 60.0, place)
    assert outcome.is_refusal, outcome


def test_a_step_past_its_limit_is_interrupted(place: Place) -> None:
    """As by Ctrl-C, so that it can keep what it has."""
    outcome = run("slow", python(KEEPING), 1.0, place)
    assert (outcome.status, outcome.result) == (TIME_UP, "in peace")


def test_ctrl_c_reaches_a_step_once(place: Place) -> None:
    """Through the call alone: a second one would cut short what it keeps."""
    outcome = run("slow", python(CTRL_C + KEEPING), 60.0, place)
    assert (outcome.status, outcome.result) == (INTERRUPTED, "in peace")
    assert run("own", python("import os; print(os.getsid(0))"), 60.0, place).result != (
        os.getsid(0)
    )


def test_one_that_does_not_listen_is_killed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its grace."""
    monkeypatch.setattr(gpu_steps, "PATIENCE_S", 0.2)
    code = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)"
    assert run("deaf", python(code), 1.0, place).status == TIME_UP


def test_a_second_ctrl_c_kills_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the grace. No signal is sent: it could hit whoever runs the tests."""
    deaf = "import signal, time; signal.signal(2, signal.SIG_IGN); print('deaf', "
    deaf += "flush=True); time.sleep(600)"
    process = subprocess.Popen(
        python(deaf), start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() == b"deaf\n"
    whole, interrupts = process.wait, iter(range(2))

    def interrupted(timeout: float | None = None) -> int:
        if next(interrupts, None) is not None:
            raise KeyboardInterrupt
        return whole(timeout)

    monkeypatch.setattr(process, "wait", interrupted)
    assert gpu_steps.wait(process, 60.0) == INTERRUPTED
    assert process.returncode == -signal.SIGKILL


def test_the_last_line_is_told(place: Place) -> None:
    """As JSON where it is; the checkout can be imported."""
    code = "import runners; print('first'); print('{\"found\": 1}')"
    assert run("json", python(code), 60.0, place).result == {"found": 1}


def test_a_step_runs_in_the_folder_of_the_results(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths are of it, but those of PYTHONPATH, which came with the call."""
    (place.out / "given").mkdir()
    (place.out / "given" / "brought.py").write_text("")
    monkeypatch.chdir(place.out / "given")
    monkeypatch.setenv("PYTHONPATH", ".")
    code = "import brought, os; print(os.getcwd())"
    assert run("where", python(code), 60.0, place).result == str(place.out)


def test_an_orphan_keeps_the_next_call_out(tmp_path: Path) -> None:
    """A step that outlives its call, which was killed, holds the lock as well."""
    kept = tmp_path / "kept"
    with sole_writer(tmp_path) as lock:
        place = Place(tmp_path, tmp_path, lock)
        # A child of the step stands for one whose call is gone.
        code = (
            "import subprocess, sys\n"
            "print(subprocess.Popen([sys.executable, '-c', 'input()'], "
            "close_fds=False, stdin=open('gate')).pid)"
        )
        os.mkfifo(tmp_path / "gate")
        gate = os.open(tmp_path / "gate", os.O_RDWR)
        assert run("parent", python(code), 60.0, place).status == 0
        os.link(tmp_path / "lock", kept)
    # What a killed call does not do: it leaves the file where it was.
    kept.rename(tmp_path / "lock")
    with pytest.raises(StoreError, match="another process"), sole_writer(tmp_path):
        pass
    os.write(gate, b"\n")
    os.close(gate)
