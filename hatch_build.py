"""Compiles `evict_profile/runtime/_scan.c` into the wheel, where a compiler is at hand.

Against the limited API, so that one wheel serves every Python from 3.11. Without a
compiler or Python's headers the wheel has no such part and serves every machine: the
runtime then decides in numpy, by `evict_profile/runtime/scan_numpy.py`.
"""

import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension

SCAN = Extension(
    "evict_profile.runtime._scan",
    ["evict_profile/runtime/_scan.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    # A product and a sum rounded once would differ from numpy's in the last digit.
    extra_compile_args=["-ffp-contract=off"],
    optional=True,
)
BUILT = Path("evict_profile/runtime/_scan.abi3.so")


class ScanHook(BuildHookInterface[Any]):
    """Builds in place, so that an editable install finds it as a wheel does."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See `BuildHookInterface`."""
        built = Path(self.root) / BUILT
        built.unlink(missing_ok=True)
        command = Distribution({"ext_modules": [SCAN]}).get_command_obj("build_ext")
        with tempfile.TemporaryDirectory() as folder:
            command.inplace = True
            command.build_lib = command.build_temp = folder
            command.ensure_finalized()
            command.run()
        if built.exists():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["pure_python"] = False
            build_data["artifacts"].append(str(BUILT))
