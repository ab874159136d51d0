"""Commands for a GPU that is lent by the hour, in calls that may be cut short.

The scripts gpu_tables.py, gpu_world.py and gpu_sglang.py are such lists. Each step is a
process of its own, under its own limit, in the folder `--out`:

    OUT/results.tar.gz    all small files, packed anew after every step (`--archive`:
                          elsewhere); unpacked into an OUT, the same command goes on
    OUT/summary.json      script, scale and GPU; how each step of each call ended
    OUT/logs/STEP.log     what a step printed when it last ran
    OUT/done/STEP         it came to its end; delete this to run it again

The same command goes on where the last call stopped. Exit codes: 0, all is done; 1,
something is missing; 2, the options or the folder cannot be used; 130, interrupted.
"""

import argparse
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evict_profile.config import SweepSpec
from evict_profile.config.gpu import GpuSpec
from evict_profile.errors import EvictProfileError, StoreError
from evict_profile.io import sole_writer, write_atomically, write_json
from evict_profile.records import replace, to_mapping
from runners.protocol import PR_SET_PDEATHSIG

ROOT = Path(__file__).resolve().parent.parent
TOOL = "evict-profile"

CALL_S, MIN_STEP_S, PATIENCE_S = 570.0, 30.0, 10.0
"""Of a call by default; with less left no step begins; to end a step."""

MISSING, USER_ERROR, TIME_UP, INTERRUPTED = 1, 2, 124, 130
ARCHIVE, MAX_FILE_BYTES = "results.tar.gz", 8 << 20
WEIGHTS = "world"
"""A folder of trained weights: too large to be packed."""


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        limit_s: seconds that it may take.
        command: "evict-profile ...", or "benchmarks/SCRIPT.py ..." of this checkout. It
            runs in OUT, so that relative paths lie there. A word with a `*` is a
            pattern: the newest file of that name, which an earlier step makes.
        resumes: whether it goes on in the next call; then any time left will do.
        python: that runs it.
        inputs: JSON files that are written into OUT before, by name.
    """

    name: str
    limit_s: float
    command: str
    resumes: bool = False
    python: str = sys.executable
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def words(self, out: Path) -> list[str]:
        """What is run.

        Raises:
            FileNotFoundError: with a pattern that nothing in OUT matches.
        """
        first, *rest = shlex.split(self.command)
        tool = ["-m", "evict_profile"]
        words = [self.python, *(tool if first == TOOL else [str(ROOT / first)])]
        for word in rest:
            matches = sorted(out.glob(word)) if "*" in word else [word]
            if not matches:
                raise FileNotFoundError(word)
            words.append(str(matches[-1]))
        return words


@dataclass(frozen=True)
class Outcome:
    """How a step ended: its exit status, and the last line that it printed."""

    name: str
    status: int
    seconds: float
    said: str


SLOW = GpuSpec("slow", "made up, so that tiny models cost something", 1, 0.1, 1e-3, 1)


def on_paper(spec: SweepSpec) -> SweepSpec:
    """A dry run's sweep, priced from a made-up datasheet.

    Times of tiny models do not follow the union, so that the gates refuse their tables.
    """
    return replace(spec, runner="roofline", gpu="slow.json")


def sweep_steps(
    name: str,
    model: str,
    spec: SweepSpec,
    minutes: float,
    opening_s: float = 120.0,
    more: str = "",
) -> tuple[Step, Step]:
    """A sweep into OUT/run-NAME, and its table under OUT/table-NAME.

    A table is a step of its own: where its gates refuse it, the sweep is not lost.
    `opening_s` is for loading the model, `more` are options of the sweep.
    """
    inputs = {f"{name}.json": to_mapping(spec), "slow.json": to_mapping(SLOW)}
    sweep = (
        f"{TOOL} sweep --model {model} --sweep {name}.json --out run-{name} "
        f"--max-minutes {minutes} {more}"
    )
    export = f"{TOOL} export run-{name} --tables table-{name}"
    return (
        Step(name, 60.0 * minutes + opening_s, sweep, resumes=True, inputs=inputs),
        Step(f"{name}-table", 60.0, export),
    )


def table_of(name: str, version: str = "1.0.0") -> str:
    """The pattern of the table that a sweep's second step makes."""
    return f"table-{name}/*/*/*/{version}.json"


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The options that all such scripts have."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--archive", type=Path, help=f"else OUT/{ARCHIVE}")
    parser.add_argument("--limit-s", type=float, default=CALL_S, help="of this call")
    parser.add_argument("--only", action="append", help="a step; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, on a CPU")
    return parser


def run_script(
    options: argparse.Namespace, name: str, steps: Sequence[Step], **kind: str
) -> int:
    """Run the steps that the time allows; returns the exit code.

    `kind`, the script, the scale and the GPU must be those of the folder.
    """
    kind |= {"script": name, "scale": "dry" if options.dry_run else "gpu"}
    kind["gpu"] = "none" if options.dry_run else gpu_name()
    names = [step.name for step in steps]
    if unknown := set(options.only or ()) - set(names):
        message = f"--only {min(unknown)}: give one of {', '.join(names)}"
        print(f"error: {message}", file=sys.stderr)
        return USER_ERROR
    for number in (signal.SIGTERM, signal.SIGHUP):
        # What else ends a process leaves a sweep the time to keep its round, too.
        signal.signal(number, signal.default_int_handler)
    out = options.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with sole_writer(out):
            wanted = [s for s in steps if s.name in (options.only or names)]
            archive = options.archive or out / ARCHIVE
            return run_call(out, kind, wanted, options.limit_s, archive.resolve())
    except (EvictProfileError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def run_call(
    out: Path,
    kind: dict[str, str],
    steps: Sequence[Step],
    limit_s: float,
    archive: Path,
) -> int:
    """Run what is missing, and pack after every step."""
    begun = time.monotonic()
    calls = [*calls_before(out, kind), []]
    for step in steps:
        if (done := out / "done" / step.name).exists():
            continue
        left_s = limit_s - (time.monotonic() - begun)
        outcome = attempt(step, out, left_s)
        if outcome.status == 0:
            done.parent.mkdir(exist_ok=True)
            done.touch()
        print(f"{step.name}: {outcome.status}, {outcome.said[-500:]}", flush=True)
        calls[-1].append(to_mapping(outcome))
        write_json({"kind": kind, "calls": calls}, out / "summary.json")
        pack(out, archive)
        if outcome.status == INTERRUPTED:
            raise KeyboardInterrupt
    missing = [s.name for s in steps if not (out / "done" / s.name).exists()]
    print(f"missing: {', '.join(missing) or 'nothing'}")
    return MISSING if missing else 0


def calls_before(out: Path, kind: dict[str, str]) -> list[Any]:
    """How the steps of earlier calls ended.

    Raises:
        StoreError: the folder is of another script, scale or GPU.
    """
    path = out / "summary.json"
    before: dict[str, Any] = {"kind": kind, "calls": []}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
    if before["kind"] != kind:
        raise StoreError(
            f"{out}: holds results of {before['kind']}, and this is {kind}; choose "
            "another --out"
        )
    write_json({"kind": kind, "calls": before["calls"]}, path)
    return list(before["calls"])


def attempt(step: Step, out: Path, left_s: float) -> Outcome:
    """Run one step, if there is time and what it needs is there."""
    needed_s = MIN_STEP_S if step.resumes else step.limit_s
    if left_s < needed_s:
        reason = f"not begun: {left_s:.0f} s are left of {needed_s:.0f}; call again"
        return Outcome(step.name, TIME_UP, 0.0, reason)
    for name, content in step.inputs.items():
        write_json(content, out / name)
    try:
        words = step.words(out)
    except FileNotFoundError as pattern:
        return Outcome(step.name, MISSING, 0.0, f"not begun: there is no {pattern}")
    return run(step.name, words, out, min(step.limit_s, left_s))


def run(name: str, words: Sequence[str], out: Path, limit_s: float) -> Outcome:
    """Run a command, its output to a log; one past its limit is ended."""
    begun = time.monotonic()
    log = out / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with log.open("w") as stream:
        process = subprocess.Popen(
            words,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            cwd=out,
            # Ctrl-C reaches it through us alone, and so once.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        status = wait(process, limit_s)
    lines = log.read_text(errors="replace").strip().splitlines()
    seconds = round(time.monotonic() - begun, 1)
    return Outcome(name, status, seconds, lines[-1] if lines else "")


def end_with_parent() -> None:
    """A step whose call was killed would disturb the next call's clocks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """How it ended; past its limit, or when we are interrupted, it is ended.

    First as Ctrl-C does, on which a sweep keeps the round that it is in.
    """
    status = TIME_UP
    try:
        return process.wait(limit_s)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except subprocess.TimeoutExpired:
        pass
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return status


def pack(out: Path, archive: Path) -> None:
    """All small files but weights, in one archive that can be carried away."""

    def write(place: Path) -> None:
        with tarfile.open(place, "w:gz") as tar:
            for path in sorted(out.rglob("*")):
                name = path.relative_to(out)
                small = path.is_file() and path.stat().st_size <= MAX_FILE_BYTES
                passing = path in (archive, place) or name.name in (ARCHIVE, "lock")
                if small and not passing and name.parts[0] != WEIGHTS:
                    tar.add(path, str(name))

    write_atomically(archive, write)


def gpu_name() -> str:
    """The first GPU's name, as its driver says it; "none" without one."""
    query = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.splitlines()[0].strip()
