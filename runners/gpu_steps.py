"""Steps of a long measurement, done in calls that may be cut short.

Each step is a process of its own under its own limit, and is done when its result is
there; runners/gpu_calls.py tells what lies in the folder that steps work in.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from evict_profile.io import write_json

ROOT = Path(__file__).resolve().parent.parent
LEAST_S = 30.0
"""With less time left not even a step that can go on later is begun."""

PATIENCE_S = 10.0
"""How long a step past its limit may take to keep what it has."""

USER_ERROR, TIME_UP, INTERRUPTED = 2, 124, 130
REFUSAL = "not exported, since"
"""What `evict-profile` says of a table that a gate refuses."""

Command = tuple[str, ...]


class Missing(Exception):
    """What a step needs and has not got, in words that follow "needs"."""


@dataclass(frozen=True)
class Step:
    """A step of the whole.

    Attributes:
        name: what `--only` calls it.
        limit_s: seconds that it may take.
        command: raises Missing.
        result: what it makes, as a pattern in the output folder; by default the note
            that it came to its end.
        goes_on: whether, stopped, it continues next time; then any time will do.
    """

    name: str
    limit_s: float
    command: Callable[[], Command]
    result: str = ""
    goes_on: bool = False

    def is_done(self, out: Path) -> bool:
        """Whether its result is there."""
        return any(out.glob(self.result or f"done/{self.name}.json"))

    def is_refused(self, out: Path) -> bool:
        """Whether it ended in a table that the gates refused."""
        return self.refusal(out).exists()

    def refusal(self, out: Path) -> Path:
        """Where that is noted."""
        return out / "refused" / f"{self.name}.json"


@dataclass(frozen=True)
class Outcome:
    """How a step ended; `result` is the JSON or the line that it printed last."""

    name: str
    status: int
    seconds: float
    result: Any

    @property
    def is_refusal(self) -> bool:
        """Whether it says that the gates refused a table."""
        return self.status == USER_ERROR and REFUSAL in str(self.result)

    def __str__(self) -> str:
        says = str(self.result)[:1000]
        return f"{self.name}: {self.status}, {self.seconds} s, {says}"


@dataclass(frozen=True)
class Place:
    """Where the steps of a call run.

    Attributes:
        out: the folder of the results, from which relative paths are taken.
        logs: in it.
        lock: keeps other calls out of it.
    """

    out: Path
    logs: Path
    lock: BaseFileLock


def evict(*words: str) -> Command:
    """A call of the toolkit."""
    return (sys.executable, "-m", "evict_profile", *words)


def script(folder: str, name: str, *words: str) -> Command:
    """A call of a script of this checkout."""
    return (sys.executable, str(ROOT / folder / name), *words)


def made(out: Path, pattern: str) -> Path:
    """The newest of what a step has made.

    Raises:
        Missing: none has.
    """
    found = sorted(out.glob(pattern))
    if not found:
        raise Missing(f"{pattern}, which no step has made")
    return found[-1]


def run(name: str, command: Command, limit_s: float, place: Place) -> Outcome:
    """Run a command, its output to a log; one past its limit is ended."""
    start = time.monotonic()
    log = place.logs / f"{name}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment(),
            # What a step notes of its paths is then true in another folder too.
            cwd=place.out,
            # Ctrl-C reaches it through us alone, and so once.
            start_new_session=True,
            # A lock belongs to the open file: a step that outlives us, since we were
            # killed, keeps the next call out until it ends.
            pass_fds=(place.lock._context.lock_file_fd or 0,),
        )
        status = wait(process, limit_s)
    seconds = round(time.monotonic() - start, 1)
    return Outcome(name, status, seconds, last_words(log))


def environment() -> dict[str, str]:
    """Ours, with this checkout to import from; relative paths are not a step's."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join((str(ROOT), *map(os.path.abspath, given)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """How it ended; past its limit, or when we are interrupted, it is ended."""
    try:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return TIME_UP
        finally:
            end(process)
    except KeyboardInterrupt:
        return INTERRUPTED


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, on which a sweep keeps the round that it is in; else by force."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also on a second Ctrl-C.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_words(log: Path) -> Any:
    """The last line of a log, as JSON if it is."""
    lines = log.read_text(errors="replace").strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return lines[-1]


def attempt(step: Step, place: Place, left_s: float, call_s: float) -> Outcome:
    """Run a step, if it is still to be run and can be in what is left of a call."""
    out = place.out
    if step.is_done(out):
        return Outcome(step.name, 0, 0.0, "there already")
    if step.is_refused(out):
        says = f"refused before; to try again delete {step.refusal(out)}"
        return Outcome(step.name, USER_ERROR, 0.0, says)
    # In most of a whole call any step is tried, since it will never have more.
    least_s = LEAST_S if step.goes_on else step.limit_s
    if left_s < min(least_s, 0.8 * call_s):
        says = (
            f"may take {step.limit_s:g} s and {left_s:.0f} are left: run the same "
            "command again"
        )
        return Outcome(step.name, 1, 0.0, says)
    try:
        command = step.command()
    except Missing as missing:
        return Outcome(step.name, 1, 0.0, f"needs {missing}")
    outcome = run(step.name, command, min(left_s, step.limit_s), place)
    if outcome.status == 0:
        write_json(asdict(outcome), out / "done" / f"{step.name}.json")
    elif outcome.is_refusal:
        write_json(asdict(outcome), step.refusal(out))
    return outcome
