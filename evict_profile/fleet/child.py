"""Runs the command line in a process that ends with its parent."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

DIES_WITH_PARENT = "EVICT_PROFILE_DIES_WITH_PARENT"

GRACE_S = 900.0
"""Seconds beyond its minutes for a sweep to open its runner and to take clocks."""


def run_command(
    words: Sequence[str], env: Mapping[str, str], log: Path, minutes: float
) -> tuple[int, str]:
    try:
        with log.open("wb") as out:
            status = subprocess.run(
                [sys.executable, "-m", "evict_profile", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **env, DIES_WITH_PARENT: "1"},
                timeout=60.0 * minutes + GRACE_S,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired:
        return 1, f"it hangs: not ended {GRACE_S / 60.0:g} min after its {minutes:g}"
    lines = log.read_text(errors="replace").strip().splitlines()
    return status, lines[-1].strip() if lines else f"it ended with status {status}"
