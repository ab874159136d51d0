"""The runtime is light: torch, numpy, the standard library, and little time."""

import re
import subprocess
import sys

ALLOWED = {"evict_profile", "torch", "numpy"}
MOST_US = 50_000

LOADED = """
import sys, torch
before = set(sys.modules)
import evict_profile.runtime
print(*(set(sys.modules) - before))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True
    )


def test_nothing_else_is_imported() -> None:
    """Beyond torch come the runtime, the bottom modules, and the standard library."""
    loaded = python("-c", LOADED).stdout.split()
    ours = {name for name in loaded if name.startswith("evict_profile")}
    foreign = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert foreign <= ALLOWED
    below = {"errors", "signed", "pricing", "lossless", "lossless.rules"}
    above = {n.removeprefix("evict_profile.") for n in ours} - below - {"evict_profile"}
    assert all(name.startswith("runtime") for name in above)


def test_it_imports_in_under_50_ms_beyond_torch() -> None:
    """As `python -X importtime` counts it."""
    code = "import torch, json, hashlib; import evict_profile.runtime"
    report = python("-X", "importtime", "-c", code).stderr
    line = re.search(r"\|\s+(\d+) \|\s*evict_profile\.runtime\n", report)
    assert line is not None
    assert int(line[1]) < MOST_US
