"""The kernels compile for GPUs; what they compute is for test_fused.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_kernels.py")


@pytest.mark.parametrize("capability", ["80", "90"])
def test_they_compile_without_a_gpu(capability: str) -> None:
    """For Ampere and Hopper, by Triton's own compiler, down to machine code."""
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, SCRIPT, capability],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
