"""The runtime is light: torch, numpy, msgspec and the standard library."""

import subprocess
import sys

ALLOWED = {"evict_profile", "torch", "numpy", "msgspec"}

LOADED = """
import sys, torch
before = set(sys.modules)
import evict_profile.runtime
print(*(set(sys.modules) - before))
"""


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True
    )


def test_nothing_else_is_imported():
    loaded = python("-c", LOADED).stdout.split()
    ours = {name for name in loaded if name.startswith("evict_profile")}
    foreign = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert {name for name in foreign if "cython" not in name} <= ALLOWED
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert rooms <= {
        "acceptance",
        "drafting",
        "runtime",
        "table",
        "config",
        "lossless",
        "cost_model",
        "physics",
        "records",
        "stats",
        "io",
        "errors",
    }
