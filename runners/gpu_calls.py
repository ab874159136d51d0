"""Calls that run what they have time for, and go on where the last one stopped.

After every step all small files are packed anew, and a call that is killed has lost the
step it was in:

    OUT/results.tar.gz       all that is worth carrying away; unpacked into an OUT, the
                             same command goes on from there
    OUT/summary.json         of which script and scale; how each step of each call
                             ended; what is missing, refused
    OUT/logs-N/STEP.log      what a step said in the Nth call
    OUT/done/STEP.json       that it came to its end, and its last words
    OUT/refused/STEP.json    that the gates refused its table, as they would again
    OUT/lock                 held by the call, and by the step that it runs

To do a step again, delete what says that it was done or refused.
"""

import argparse
import json
import os
import signal
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evict_profile.errors import EvictProfileError, StoreError
from evict_profile.io import (
    check_folder,
    make_folder,
    sole_writer,
    write_atomically,
    write_json,
)
from evict_profile.signed import differences
from runners.gpu_steps import (
    INTERRUPTED,
    LEAST_S,
    USER_ERROR,
    Outcome,
    Place,
    Step,
    attempt,
)

CALL_S = 570.0
SOME_MISSING, SOME_REFUSED = 1, 3

ARCHIVE = "results.tar.gz"
LARGEST_RESULT, LARGEST_ARCHIVE = 8 << 20, 16 << 20
LEFT_BEHIND = "world"
"""A folder of weights: without them, the rest of it would pass for a world."""

Kind = Mapping[str, str]
"""Script and scale: what is done of one says nothing of another."""


def pack(out: Path) -> None:
    """All small files but a world, in one archive that can be carried away."""
    archive = out / ARCHIVE

    def write(place: Path) -> None:
        with tarfile.open(place, "w:gz") as tar:
            for path in sorted(out.rglob("*")):
                own = path.relative_to(out)
                if is_carried(path, own):
                    tar.add(path, str(own))

    write_atomically(archive, write)
    if (size := archive.stat().st_size) > LARGEST_ARCHIVE:
        print(f"note: {archive} has {size >> 20} MiB", flush=True)


def is_carried(path: Path, own: Path) -> bool:
    """Whether a file of the output folder goes into the archive."""
    passing = own.name in (ARCHIVE, "lock") or own.suffix == ".tmp"
    if passing or own.parts[0] == LEFT_BEHIND:
        return False
    return path.is_file() and path.stat().st_size <= LARGEST_RESULT


def work(out: Path, kind: Kind, plan: Sequence[Step], limit_s: float) -> int:
    """Run the steps of one call; says by its exit code whether another is needed.

    Raises:
        StoreError: the folder is in use, holds another kind, or cannot be written.
        OSError: likewise.
        KeyboardInterrupt: by Ctrl-C or another signal that ends a process; the step
            was ended too, and that is noted and packed.
    """
    begun = time.monotonic()
    with sole_writer(out) as lock:
        notes = Notes(out, kind, plan)
        place = Place(out, out / f"logs-{len(notes.calls)}", lock)
        make_folder(place.logs)
        for step in plan:
            left_s = max(0.0, limit_s - (time.monotonic() - begun))
            outcome = attempt(step, place, left_s, limit_s)
            notes.add(outcome)
            pack(out)
            print(outcome, flush=True)
            if outcome.status == INTERRUPTED:
                raise KeyboardInterrupt
    left = what_is_left(out, plan)
    for what, names in left.items():
        print(f"{what}: {', '.join(names) or 'nothing'}")
    return SOME_MISSING if left["missing"] else SOME_REFUSED if left["refused"] else 0


class Notes:
    """How steps ended: the file summary.json, with one more call in it.

    Written before the first step: one that is killed would leave a folder of no kind.

    Raises:
        StoreError: the folder holds another kind, or a summary that is none of ours.
    """

    def __init__(self, out: Path, kind: Kind, plan: Sequence[Step]) -> None:
        self.out, self.kind, self.plan = out, kind, plan
        self.path = out / "summary.json"
        self.calls = [*calls_before(self.path, kind), []]
        self._write()

    def add(self, outcome: Outcome) -> None:
        """How one more ended."""
        self.calls[-1].append(asdict(outcome))
        self._write()

    def _write(self) -> None:
        left = what_is_left(self.out, self.plan)
        found = {"kind": dict(self.kind), "calls": self.calls, **left}
        write_json(found, self.path)


def calls_before(summary: Path, kind: Kind) -> list[Any]:
    """What the calls up to now noted.

    Raises:
        StoreError: a folder of another kind, or a summary that is none of ours.
    """
    if not os.path.lexists(summary):
        return []
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))
        calls, theirs = list(found["calls"]), dict(found["kind"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{summary}: is no summary that this script wrote; put a whole copy back, "
            "or choose another --out"
        ) from error
    if reasons := differences(kind, theirs):
        raise StoreError(
            f"{summary.parent}: holds other results ({'; '.join(reasons)}); choose "
            "another --out"
        )
    return calls


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
        "--limit-s", type=call_time, default=CALL_S, help="of this call"
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


def call_time(text: str) -> float:
    """What argparse takes for the time of a call: no step begins in a shorter one."""
    found = above_zero(text)
    if found < LEAST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} seconds are too few to begin a step; give at least {LEAST_S:g}"
        )
    return found


def go(
    parser: argparse.ArgumentParser,
    asked: argparse.Namespace,
    kind: Kind,
    plan: Sequence[Step],
) -> int:
    """Run the steps asked for.

    Returns:
        0 when their results are there, 1 while one is missing, 2 when the folder
        cannot be worked in, 3 when all that is missing are tables that the gates
        refused, 130 when interrupted.
    """
    out, names = asked.out.resolve(), [step.name for step in plan]
    if unknown := set(asked.only or ()) - set(names):
        parser.error(f"--only {min(unknown)}: the steps are {', '.join(names)}")
    try:
        check_folder(out)
        make_folder(out)
    except StoreError as error:
        parser.error(f"--out {error}")
    wanted = [step for step in plan if not asked.only or step.name in asked.only]
    try:
        with interrupted_by_all():
            return work(out, kind, wanted, asked.limit_s)
    except EvictProfileError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(
            f"{error.filename or out}: {error.strerror or error}; mend that and run "
            "the same command again: what was done is kept"
        )
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def interrupted_by_all() -> Iterator[None]:
    """What else ends a process is taken as Ctrl-C, so that no step outlives its call.

    Steps have sessions of their own, so that a terminal that is closed tells only us.
    """
    signals = (signal.SIGTERM, signal.SIGHUP)
    # `nohup` has one ignored, which is to stay so.
    heard = [each for each in signals if signal.getsignal(each) == signal.SIG_DFL]
    for each in heard:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, signal.SIG_DFL)


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return USER_ERROR
