"""What runs on a node: one shard's sweep, whose samples leave the node round by round.

The sweep is the command that exists, in a process of its own: what ends it, ends this
task no more than a cell's crash ends the sweep. A round is a file that appears whole,
so what to send is what is new in the run folder.
"""

import json
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from evict_profile.records import Facts

POLL_S, BEAT_S = 0.5, 5.0
SENT = ("sweep.json", "clocks.json", "parts/*.parquet")
LAST_WORDS = 400
UNENDED = 124
"""Status of a command that ran past its time, as that of timeout(1)."""


class ShardRequest(NamedTuple):
    """What a task is asked.

    Attributes:
        model, sweep: as `records.to_mapping` makes them.
        python: of the engine; "" for this interpreter.
        minutes: that it may measure.
        silence_s: a sweep that says nothing for so long hangs.
    """

    model: Facts
    sweep: Facts
    shard: str
    python: str
    env: Mapping[str, str]
    minutes: float
    silence_s: float


@dataclass(frozen=True)
class Event:
    """What a task says.

    Attributes:
        kind: "started", "beat" with or without files, or "ended".
        node, host, pid: where it runs.
        files: new files of the run folder, by their path in it.
        words: the sweep's last line; for "ended", why it failed, or "".
    """

    kind: str
    node: str = ""
    host: str = ""
    pid: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    words: str = ""


def measure(
    request: ShardRequest, files: Mapping[str, bytes], node: str
) -> Iterator[Event]:
    """Begin or continue a shard; events until it ends."""
    where = Event("started", node, platform.node(), os.getpid())
    yield where
    with TemporaryDirectory(prefix="evict-fleet-") as name:
        run = Path(name) / "run"
        for path, content in files.items():
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            (run / path).write_bytes(content)
        sent = _stamps(run)
        with _sweep(request, Path(name)) as (process, log):
            yield from _watch(process, run, log, sent, request.silence_s)


def recheck(
    table: bytes, samples: bytes, python: str, env: Mapping[str, str], within_s: float
) -> tuple[int, str]:
    """Recheck a table on this node: the command's exit status and its last line."""
    with TemporaryDirectory(prefix="evict-fleet-") as name:
        path, log = Path(name) / "1.0.0.json", Path(name) / "log"
        path.write_bytes(table)
        path.with_suffix(".parquet").write_bytes(samples)
        with _running(["check", str(path), "--recheck"], python, env, log) as process:
            if not _ends_within(process, within_s):
                return UNENDED, f"no answer in {within_s / 60.0:g} min"
            return process.returncode, _last_line(log)


def _watch(
    process: "subprocess.Popen[bytes]",
    run: Path,
    log: Path,
    sent: dict[str, int],
    silence_s: float,
) -> Iterator[Event]:
    heard = beat = time.monotonic()
    said = 0
    while True:
        ended = _ends_within(process, POLL_S)
        new = {k: v for k, v in _stamps(run).items() if sent.get(k) != v}
        sent |= new
        now, length = time.monotonic(), log.stat().st_size
        if new or length != said:
            heard, said = now, length
        if new or now - beat >= BEAT_S:
            beat = now
            files = {name: (run / name).read_bytes() for name in new}
            yield Event("beat", files=files, words=_last_line(log))
        if ended:
            yield Event("ended", words=_why(process.returncode, log))
            return
        if now - heard > silence_s:
            minutes = f"{silence_s / 60.0:g} min"
            yield Event(
                "ended", words=f"the sweep said nothing for {minutes}: it hangs"
            )
            return


@contextmanager
def _sweep(
    request: ShardRequest, folder: Path
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """The sweep's process and its log; it ends with the block."""
    words = ["sweep", "--out", str(folder / "run"), "--shard", request.shard]
    for option in ("model", "sweep"):
        path = folder / f"{option}.json"
        path.write_text(json.dumps(getattr(request, option)))
        words += [f"--{option}", str(path)]
    words += ["--max-minutes", f"{request.minutes:.3f}"]
    with _running(words, request.python, request.env, folder / "log") as process:
        yield process, folder / "log"


@contextmanager
def _running(
    words: Sequence[str], python: str, env: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """The toolkit's command with an engine's environment; it ends with the block."""
    options = ["--python", python] if python else []
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "evict_profile.fleet.child", *words, *options],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **env},
            # Ctrl-C is for the driver.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait without looking now and then, which would disturb what is measured."""
    handle = os.pidfd_open(process.pid)
    try:
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    return process.poll() is not None


def _stamps(run: Path) -> dict[str, int]:
    """When each file to be sent was written, the header first."""
    paths = [path for pattern in SENT for path in sorted(run.glob(pattern))]
    return {str(path.relative_to(run)): path.stat().st_mtime_ns for path in paths}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[-LAST_WORDS:] if lines else ""


def _why(status: int, log: Path) -> str:
    """Why a sweep failed; "" where it did not."""
    if status == 0:
        return ""
    said = _last_line(log).removeprefix("error: ")
    return said or f"the sweep ended with status {status} and said nothing"
