"""SGLang in a process of its own, with plug-ins that are installed nowhere."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment_with(folder: Path, plugins: Mapping[str, str]) -> dict[str, str]:
    """An environment in which SGLang finds plug-ins, by name, as installed ones."""
    entry = folder / "plugins" / "planted-1.dist-info"
    entry.mkdir(parents=True, exist_ok=True)
    (entry / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: planted\nVersion: 1\n"
    )
    lines = [f"{name} = {where}" for name, where in plugins.items()]
    (entry / "entry_points.txt").write_text("\n".join(["[sglang.srt.plugins]", *lines]))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EVICT_PROFILE_")}
    path = (str(entry.parent), str(ROOT), kept.get("PYTHONPATH", ""))
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def run_apart(
    words: Sequence[str], environment: Mapping[str, str], log: Path, limit_s: float
) -> None:
    """Run a command in a group of processes of its own, and leave none of it behind."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            words,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stream.write(f"\nended after {limit_s:.0f} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
