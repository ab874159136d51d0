"""Commands for a GPU that is lent by the hour, in calls that may be cut short.

gpu_tables.py, gpu_world.py and gpu_sglang.py are lists of such commands. Each step is a
process with a time limit of its own, in the folder `--out`:

    OUT/results.tar.gz    all small files, packed anew after every step (`--archive`:
                          elsewhere); unpacked into an OUT, the same command goes on
    OUT/summary.json      script, scale and GPU; how each step of each call ended
    OUT/logs/STEP.log     what a step printed when it last ran
    OUT/done/STEP         the step is done; delete this file to run it again

The same command goes on where the last call stopped. Exit codes: 0, all is done; 1,
something is missing; 2, the options or the folder cannot be used; 130, interrupted.
"""

import argparse
import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evict_profile.config import SweepSpec
from evict_profile.config.gpu import GpuSpec
from evict_profile.errors import EvictProfileError, StoreError
from evict_profile.io import sole_writer, write_atomically, write_json
from evict_profile.records import read_mapping, replace, to_mapping
from runners.protocol import PR_SET_PDEATHSIG

ROOT = Path(__file__).resolve().parent.parent
TOOL = "evict-profile"
CALL_S = 570.0
"""Seconds of a call by default."""
MIN_STEP_S = 30.0
"""With less time left no step begins."""
PATIENCE_S = 10
"""Seconds between the interruption of a step and its kill."""
MISSING, USER_ERROR, TIME_UP, INTERRUPTED = 1, 2, 124, 130
ARCHIVE, MAX_FILE_BYTES = "results.tar.gz", 8 << 20
WEIGHTS = "world"
"""Folder of the trained weights, which are too large for the archive."""
SLOW = GpuSpec("slow", "made up, so that tiny models cost something", 1, 0.1, 1e-3, 1)


@dataclass(frozen=True)
class GpuStep:
    """One command, which runs in OUT.

    Attributes:
        resumes: whether it goes on in the next call; then any time left will do.
        command: "evict-profile ...", "benchmarks/SCRIPT.py ..." of this checkout, or a
            program. A word with a `*` is a pattern: the newest file of that name, which
            an earlier step makes.
    """

    name: str
    limit_s: float
    resumes: bool
    command: str

    def words(self, out: Path) -> list[str]:
        """The command line, patterns replaced."""
        first, *rest = shlex.split(self.command)
        words = [first]
        if first == TOOL:
            words = [sys.executable, "-m", "evict_profile"]
        elif first.endswith(".py"):
            words = [sys.executable, str(ROOT / first)]
        for word in rest:
            matches = sorted(out.glob(word)) if "*" in word else [word]
            if not matches:
                raise FileNotFoundError(word)
            words.append(str(matches[-1]))
        return words


def steps_of(listing: str, **values: object) -> list[GpuStep]:
    """The steps of a listing: `NAME SECONDS COMMAND`, one a line.

    A command goes on in indented lines. A `+` behind the seconds: the step resumes.
    `{NAME}` stands for one of the values.
    """
    steps = []
    for line in filter(None, re.sub(r"\n +", " ", listing).splitlines()):
        name, limit, command = line.format(**values).split(maxsplit=2)
        resumes = limit.endswith("+")
        steps.append(GpuStep(name, float(limit.rstrip("+")), resumes, command))
    return steps


@dataclass(frozen=True)
class StepResult:
    """How a step ended: its exit status, and the last line that it printed."""

    name: str
    status: int
    seconds: float
    last_line: str


def on_paper(spec: SweepSpec) -> SweepSpec:
    """A dry run's sweep, priced from a made-up datasheet.

    Times of tiny models do not follow the union, so gates would refuse their tables.
    """
    return replace(spec, runner="roofline", gpu="slow.json")


def table_of(name: str, version: str = "1.0.0") -> str:
    """The pattern of the table that was exported into OUT/table-NAME."""
    return f"table-{name}/*/*/*/{version}.json"


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--archive", type=Path, help=f"else OUT/{ARCHIVE}")
    parser.add_argument("--limit-s", type=float, default=CALL_S, help="of this call")
    parser.add_argument("--only", action="append", help="a step; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="tiny models, on a CPU")
    return parser


def run_script(
    options: argparse.Namespace,
    name: str,
    steps: Sequence[GpuStep],
    sweeps: Mapping[str, SweepSpec],
) -> int:
    """Run the steps that the time allows; returns the exit code.

    `sweeps` are written into OUT, as NAME.json.
    """
    names = [step.name for step in steps]
    only = options.only or names
    try:
        if unknown := set(only) - set(names):
            raise StoreError(f"--only {min(unknown)}: give one of {', '.join(names)}")
        # SIGTERM and SIGHUP leave a sweep the time to keep its round, as Ctrl-C does.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        options.out = options.out.resolve()
        options.out.mkdir(parents=True, exist_ok=True)
        with sole_writer(options.out):
            summary = open_summary(options.out, name, options.dry_run)
            for sweep, spec in sweeps.items():
                write_json(to_mapping(spec), options.out / f"{sweep}.json")
            if options.dry_run:
                write_json(to_mapping(SLOW), options.out / "slow.json")
            return run_call(options, summary, [s for s in steps if s.name in only])
    except (EvictProfileError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def run_call(
    options: argparse.Namespace, summary: dict[str, Any], steps: Sequence[GpuStep]
) -> int:
    """Run what is missing, and pack after every step."""
    out, begun = options.out, time.monotonic()
    archive = (options.archive or out / ARCHIVE).resolve()
    calls: list[Any] = []
    summary["calls"].append(calls)
    for step in steps:
        if (done := out / "done" / step.name).exists():
            continue
        ending = attempt(step, out, options.limit_s - (time.monotonic() - begun))
        if ending.status == 0:
            done.parent.mkdir(exist_ok=True)
            done.touch()
        print(f"{step.name}: {ending.status}, {ending.last_line[-500:]}", flush=True)
        calls.append(asdict(ending))
        write_json(summary, out / "summary.json")
        pack(out, archive)
        if ending.status == INTERRUPTED:
            raise KeyboardInterrupt
    missing = [s.name for s in steps if not (out / "done" / s.name).exists()]
    print(f"missing: {', '.join(missing) or 'nothing'}")
    return MISSING if missing else 0


def open_summary(out: Path, script: str, dry: bool) -> dict[str, Any]:
    """What the folder's summary holds so far; a new one is written."""
    kind = {
        "script": script,
        "scale": "dry" if dry else "gpu",
        "gpu": "none" if dry else gpu_name(),
    }
    path = out / "summary.json"
    if not path.exists():
        write_json({"kind": kind, "calls": []}, path)
    summary = read_mapping(path)
    if summary["kind"] != kind:
        raise StoreError(
            f"{out}: holds results of {summary['kind']}, and this is {kind}; choose "
            "another --out"
        )
    return summary


def attempt(step: GpuStep, out: Path, left_s: float) -> StepResult:
    """Run one step, if there is time and what it needs is there."""
    needed_s = MIN_STEP_S if step.resumes else step.limit_s
    if left_s < needed_s:
        reason = f"not begun: {left_s:.0f} s are left of {needed_s:.0f}; call again"
        return StepResult(step.name, TIME_UP, 0.0, reason)
    try:
        words = step.words(out)
    except FileNotFoundError as pattern:
        return StepResult(step.name, MISSING, 0.0, f"not begun: there is no {pattern}")
    return run(step.name, words, out, min(step.limit_s, left_s))


def run(name: str, words: Sequence[str], out: Path, limit_s: float) -> StepResult:
    """Run a command, its output to a log.

    At its limit, or when the call is interrupted, the command gets a SIGINT, on which a
    sweep keeps the round that it is in; `PATIENCE_S` later it is killed.
    """
    begun = time.monotonic()
    log = out / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # In the foreground, timeout signals the command alone, and so once.
    limit = ("timeout", "--foreground", "-s", "INT", "-k", str(PATIENCE_S))
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*limit, str(limit_s), *words],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            cwd=out,
            start_new_session=True,
            preexec_fn=interrupt_with_parent,
        )
        try:
            status = process.wait()
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            process.send_signal(signal.SIGINT)
            process.wait()
            status = INTERRUPTED
    lines = log.read_text(errors="replace").strip().splitlines()
    seconds = round(time.monotonic() - begun, 1)
    return StepResult(name, status, seconds, lines[-1] if lines else "")


def interrupt_with_parent() -> None:
    """A step that outlives a killed call would disturb the next call's clocks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def pack(out: Path, archive: Path) -> None:
    """Pack all small files but weights into one archive that can be carried away."""

    def write(target: Path) -> None:
        with tarfile.open(target, "w:gz") as tar:
            for path in sorted(out.rglob("*")):
                name = path.relative_to(out)
                small = path.is_file() and path.stat().st_size <= MAX_FILE_BYTES
                skipped = path in (archive, target) or name.name in (ARCHIVE, "lock")
                if small and not skipped and name.parts[0] != WEIGHTS:
                    tar.add(path, str(name))

    write_atomically(archive, write)


def gpu_name() -> str:
    """The first GPU's name as its driver says it; "none" without one."""
    # Not NVML's binding: a machine that is lent may have the driver alone.
    query = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return found.stdout.splitlines()[0].strip()
