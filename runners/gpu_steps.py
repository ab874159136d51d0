"""Steps of a long measurement, done in calls that may be cut short.

Each step is a process of its own under its own limit, and is done when its result is
there. So the same command goes on where the last call stopped. After every step all
small files are packed anew, and a call that is killed has lost the step it was in:

    OUT/results.tar.gz       all that is worth carrying away; unpacked into an OUT, the
                             same command goes on from there
    OUT/summary.json         how each step of each call ended; what is missing, refused
    OUT/logs-N/STEP.log      what a step said in the Nth call
    OUT/done/STEP.json       that it came to its end, and its last words
    OUT/refused/STEP.json    that the gates refused its table, as they would again

To do a step again, delete what says that it was done or refused.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evict_profile.errors import StoreError
from evict_profile.files import make_folder, require_folder, write_atomically

ROOT = Path(__file__).resolve().parent.parent
CALL_S = 570.0
LEAST_S = 30.0
"""With less time left not even a step that can go on later is begun."""

PATIENCE_S = 10.0
"""How long a step past its limit may take to keep what it has."""

USER_ERROR, TIME_UP = 2, 124
SOME_MISSING, SOME_REFUSED = 1, 3
REFUSAL = "not exported, since"
"""What `evict-profile` says of a table that a gate refuses."""

LARGEST_RESULT, LARGEST_ARCHIVE = 8 << 20, 16 << 20
LEFT_BEHIND = "world"
"""A folder of weights: without them, the rest of it would pass for a world."""

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


def run(name: str, command: Command, limit_s: float, logs: Path) -> Outcome:
    """Run a command, its output to a log; one past its limit is ended."""
    start = time.monotonic()
    log = logs / f"{name}.log"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = TIME_UP
        finally:
            end(process)
    seconds = round(time.monotonic() - start, 1)
    return Outcome(name, status, seconds, last_words(log))


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, on which a sweep keeps the round that it is in; else by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_words(log: Path) -> Any:
    """The last line of a log, as JSON if it is."""
    lines = log.read_text(errors="replace").strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return lines[-1]


def attempt(step: Step, out: Path, logs: Path, left_s: float, call_s: float) -> Outcome:
    """Run a step, if it is still to be run and can be in what is left of a call."""
    if step.is_done(out):
        return Outcome(step.name, 0, 0.0, "there already")
    if step.is_refused(out):
        says = f"refused before; to try again delete {step.refusal(out)}"
        return Outcome(step.name, USER_ERROR, 0.0, says)
    # In most of a whole call any step is tried, since it will never have more.
    if left_s < (LEAST_S if step.goes_on else min(step.limit_s, 0.8 * call_s)):
        says = (
            f"may take {step.limit_s:g} s and {left_s:.0f} are left: run the same "
            "command again"
        )
        return Outcome(step.name, 1, 0.0, says)
    try:
        command = step.command()
    except Missing as missing:
        return Outcome(step.name, 1, 0.0, f"needs {missing}")
    outcome = run(step.name, command, min(left_s, step.limit_s), logs)
    if outcome.status == 0:
        write_json(out / "done" / f"{step.name}.json", asdict(outcome))
    elif outcome.is_refusal:
        write_json(step.refusal(out), asdict(outcome))
    return outcome


def write_json(path: Path, found: Any) -> None:
    """A JSON file in one move."""
    text = json.dumps(found, indent=1)
    write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))


def pack(out: Path) -> None:
    """All small files but a world, in one archive that can be carried away."""
    archive = out / "results.tar.gz"

    def write(place: Path) -> None:
        with tarfile.open(place, "w:gz") as tar:
            for path in sorted(out.rglob("*")):
                own = path.relative_to(out)
                small = path.is_file() and path.stat().st_size <= LARGEST_RESULT
                if (
                    small
                    and path not in (archive, place)
                    and own.parts[0] != LEFT_BEHIND
                ):
                    tar.add(path, str(own))

    write_atomically(archive, write)
    if (size := archive.stat().st_size) > LARGEST_ARCHIVE:
        print(f"note: {archive} has {size >> 20} MiB", flush=True)


def work(out: Path, plan: Sequence[Step], limit_s: float) -> int:
    """Run the steps of one call; says by its exit code whether another is needed."""
    begun = time.monotonic()
    summary = out / "summary.json"
    calls = json.loads(summary.read_text())["calls"] if summary.exists() else []
    logs = out / f"logs-{len(calls) + 1}"
    make_folder(logs)
    calls.append([])
    for step in plan:
        left_s = max(0.0, limit_s - (time.monotonic() - begun))
        outcome = attempt(step, out, logs, left_s, limit_s)
        calls[-1].append(asdict(outcome))
        says = str(outcome.result)[:1000]
        print(f"{step.name}: {outcome.status}, {outcome.seconds} s, {says}", flush=True)
        write_json(summary, {"calls": calls, **what_is_left(out, plan)})
        pack(out)
    left = what_is_left(out, plan)
    for what, names in left.items():
        print(f"{what}: {', '.join(names) or 'nothing'}")
    return SOME_MISSING if left["missing"] else SOME_REFUSED if left["refused"] else 0


def what_is_left(out: Path, plan: Sequence[Step]) -> dict[str, list[str]]:
    """Steps without a result: to be run, and ended by the gates."""
    left = [step for step in plan if not step.is_done(out)]
    return {
        "missing": [step.name for step in left if not step.is_refused(out)],
        "refused": [step.name for step in left if step.is_refused(out)],
    }


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The options that all have, under the first line of a script's text."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", action="append", help="a step; repeatable")
    parser.add_argument(
        "--limit-s", type=above_zero, default=CALL_S, help="of this call"
    )
    return parser


def above_zero(text: str) -> float:
    """What argparse takes for a time that something may take."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    # Not `<= 0`: that lets nan through.
    if not found > 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0; give one")
    return found


def go(
    parser: argparse.ArgumentParser, asked: argparse.Namespace, plan: Sequence[Step]
) -> int:
    """Run the steps asked for.

    Returns:
        0 when their results are there, 1 while one is missing, 3 when all that is
        missing are tables that the gates refused.
    """
    out, names = asked.out.resolve(), [step.name for step in plan]
    if unknown := set(asked.only or ()) - set(names):
        parser.error(f"--only {min(unknown)}: the steps are {', '.join(names)}")
    try:
        require_folder(out)
        make_folder(out)
    except StoreError as error:
        parser.error(f"--out {error}")
    wanted = [step for step in plan if not asked.only or step.name in asked.only]
    return work(out, wanted, asked.limit_s)
