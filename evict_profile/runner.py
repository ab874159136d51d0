"""Talking to a runner: one child process, JSON lines, its log beside the samples.

A runner that opened with `"clocks": true` also times drafting and the rest of a step,
once for each batch of the grid, after the last cell or when the time is up. Cells time
verification alone; with the clocks a table covers whole steps.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct

from evict_profile.cells import Cell, Reading
from evict_profile.config import ModelSpec
from evict_profile.config.sweep import runner_program
from evict_profile.deadline import Deadline
from evict_profile.drafting import DraftClock
from evict_profile.errors import ConfigError, MeasurementError
from evict_profile.io import data_root
from evict_profile.records import parse, to_mapping

Message = dict[str, Any]
Show = Callable[[str], None]
T = TypeVar("T")

QUIET_CPU = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    # Large activations would otherwise be mapped, and their pages zeroed, each run.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}

EXIT_TIMEOUT_S = 10.0
"""How long a runner may take to end by itself. When a sweep is to stop, its runner may
answer so much later than its longest answer before took."""
ANSWER_TIMEOUT_S, OPEN_TIMEOUT_S = 900.0, 7200.0
"""How long it may take to answer; to open, for that loads a model."""
POLL_S = 0.5
"""How often to look whether it still lives: a child may hold the pipe of a dead one."""

CLOCK_STEPS = 24
"""Steps whose median a clock of drafting is."""

PROGRESS = re.compile(rb'\{"progress": "([^"]*)"\}\n')
"""What a runner may say before it answers."""

NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w]+)")
"""The last words of an interpreter that lacks what a runner imports."""


class _Measured(Struct):
    samples: list[Reading]


class _Refused(Struct):
    kind: Literal["device", "memory", "oom", "infeasible", "graph", "failed"]
    message: str


class RunnerCrash(MeasurementError):
    """The runner's process ended while an answer was due; `words` name no log."""

    def __init__(self, words: str, log: Path | None = None) -> None:
        super().__init__(f"{words} (log: {log})" if log else words)
        self.words = words


class RunnerStopped(MeasurementError):
    """The runner was killed, for it gave no answer when its time was up."""


class RunnerRefusal(MeasurementError):
    """The runner answered that it cannot; `kind` says why in one word."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Runner:
    def __init__(
        self,
        name: str,
        python: str | None,
        log: Path,
        show: Show = lambda words: None,
        deadline: Deadline | None = None,
    ) -> None:
        self.command = runner_command(name, python)
        self.log, self._show, self._answered = log, show, False
        self._deadline, self._longest_s = deadline or Deadline(), 0.0
        # After ours, the caller's: it may be how the interpreter finds its engine.
        paths = filter(None, (str(data_root()), os.environ.get("PYTHONPATH")))
        python_path = {"PYTHONPATH": os.pathsep.join(paths)}
        environment = {**os.environ, **QUIET_CPU, **python_path}
        with log.open("ab") as errors:
            self._log_start = errors.tell()
            try:
                # It dies with the thread that starts it, and the caller's may end.
                self._starter = ThreadPoolExecutor(1)
                self._process = self._starter.submit(
                    subprocess.Popen,
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    # Ctrl-C is for the sweep, which lets the sample in flight finish.
                    start_new_session=True,
                ).result()
            except OSError as error:
                self._drop_empty_log()
                raise ConfigError(
                    f"--python {self.command[0]}: cannot be run: {error.strerror}"
                ) from error

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(kind)

    def open(self, model: ModelSpec, options: Message) -> Message:
        """Build the model; answers fingerprint, capture_sizes, bandwidth_gbps."""
        return self.ask({"do": "open", "model": to_mapping(model), "options": options})

    def measure(
        self, cell: Cell, seeds: Sequence[int], layers: int | None = None
    ) -> list[Reading]:
        """Time a cell once a seed, on the first `layers` MoE layers or on all."""
        ask = {"cell": to_mapping(cell), "seeds": list(seeds), "layers": layers}
        samples = self.read(_Measured, self.ask({"do": "measure", **ask})).samples
        if len(samples) != len(seeds):
            raise MeasurementError(
                f"{' '.join(self.command)}: answered {len(samples)} samples for "
                f"{len(seeds)} seeds; see runners/protocol.py"
            )
        return samples

    def clock(self, batch: int) -> DraftClock:
        """Time drafting and the rest of a step at a batch size.

        Each level takes time, so a cumulative time that falls is noise.
        """
        answer = self.ask({"do": "clock", "batch": batch, "steps": CLOCK_STEPS})
        draft_us = answer.get("draft_us")
        if isinstance(draft_us, list):
            with contextlib.suppress(TypeError):
                answer["draft_us"] = list(accumulate(draft_us, max))
        source = f"the runner's clock of batch {batch}"
        return parse(DraftClock, {"batch": batch, **answer}, source, extra_keys=True)

    def ask(self, request: Message) -> Message:
        assert self._process.stdin
        line = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            limit_s = OPEN_TIMEOUT_S if request["do"] == "open" else ANSWER_TIMEOUT_S
            begun, line = time.monotonic(), self._line(limit_s)
            while progress := PROGRESS.match(line):
                self._show(progress[1].decode())
                line = line[progress.end() :] or self._line(limit_s)
            if request["do"] != "open":
                self._longest_s = max(self._longest_s, time.monotonic() - begun)
        if not line.endswith(b"\n"):  # nothing, or an answer broken off
            raise self._crash()
        try:
            answer: Message = json.loads(line)
            accepted = answer.pop("ok")
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            said = line.decode(errors="replace").strip()[:60]
            raise MeasurementError(
                f"{' '.join(self.command)}: said {said!r} where an answer was due; a "
                "runner must speak runners/protocol.py"
            ) from error
        self._answered = True
        if not accepted:
            refused = self.read(_Refused, answer)
            raise RunnerRefusal(refused.kind, refused.message)
        return answer

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout
        pipe, line = self._process.stdout.fileno(), b""
        ends, grace_s = time.monotonic() + limit_s, EXIT_TIMEOUT_S + self._longest_s
        while not line.endswith(b"\n"):
            ended = self._process.poll() is not None
            if select.select([pipe], [], [], 0.0 if ended else POLL_S)[0]:
                line += (more := os.read(pipe, 1 << 20))
                ended = not more
            elif time.monotonic() > ends:
                raise self._crash(f"was killed, for it gave no answer in {limit_s:g} s")
            elif (over_s := -self._deadline.seconds_left()) > grace_s:
                self._kill()
                raise RunnerStopped(
                    f"the runner was killed, for {over_s:.0f} s after the sweep was to "
                    "stop it had not answered; what was measured is kept"
                )
            if ended:
                break
        return line

    def read(self, kind: type[T], answer: Message) -> T:
        """An answer's fields, checked; fields of later runners are ignored."""
        source = f"{' '.join(self.command)}: its answer (see runners/protocol.py)"
        return parse(kind, answer, source, MeasurementError, extra_keys=True)

    def close(self, after: type[BaseException] | None = None) -> None:
        """End the process, at once after Ctrl-C; remove a log that holds nothing."""
        listens = self._process.poll() is None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(0.0 if after is KeyboardInterrupt else EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        if listens:
            self._drop_empty_log()

    def _kill(self) -> None:
        """End it and what it started, which would disturb what is measured next."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _drop_empty_log(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size == 0:
                self.log.unlink()

    def _crash(self, ended: str = "") -> RunnerCrash:
        try:
            ended = ended or f"ended with status {self._process.wait(EXIT_TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            ended = "closed its output and went on, so it was killed,"
        self._kill()
        status = self._process.returncode
        words = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        lines = words.strip().splitlines()
        if lines and (missing := NO_MODULE.match(lines[-1])):
            return RunnerCrash(
                f"{' '.join(self.command)}: has no module '{missing[1]}'; install it "
                "there, or give --python an interpreter that has it",
                self.log,
            )
        if lines:
            return RunnerCrash(f"the runner {ended}: {lines[-1]}", self.log)
        self._drop_empty_log()
        if self._answered or status < 0:  # by a signal: no fault of the interpreter
            return RunnerCrash(f"the runner {ended} and said nothing")
        return RunnerCrash(
            f"{' '.join(self.command)}: answered nothing and {ended}; give --python an "
            "interpreter that has torch"
        )


def runner_command(name: str, python: str | None) -> list[str]:
    interpreter, program = python or sys.executable, runner_program(name)
    is_script = program == Path(name)
    return [interpreter, *([name] if is_script else ["-m", f"runners.{name}"])]
