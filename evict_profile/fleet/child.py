"""The command line in a process that ends with the one that started it.

A sweep whose fleet was killed would disturb the clock of what is measured next. A
runner ends with its sweep likewise.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""

GRACE_S = 900.0
"""That a sweep may take beyond its minutes: to open its runner and to take clocks."""


def run_command(
    words: Sequence[str], env: Mapping[str, str], log: Path, minutes: float
) -> tuple[int, str]:
    """Run `evict-profile` in a process of its own: its status and its last line."""
    try:
        with log.open("wb") as out:
            status = subprocess.run(
                [sys.executable, "-m", "evict_profile.fleet.child", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **env},
                timeout=60.0 * minutes + GRACE_S,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired:
        return 1, f"it hangs: not ended {GRACE_S / 60.0:g} min after its {minutes:g}"
    lines = log.read_text(errors="replace").strip().splitlines()
    return status, lines[-1].strip() if lines else f"it ended with status {status}"


def main() -> None:
    """Run `evict-profile` with the words of the command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    from evict_profile import cli

    cli.main()


if __name__ == "__main__":
    main()
