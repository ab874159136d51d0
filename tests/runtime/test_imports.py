"""The runtime is light: torch, numpy and the standard library."""

import subprocess
import sys

ALLOWED = {"evict_profile", "torch", "numpy"}

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
