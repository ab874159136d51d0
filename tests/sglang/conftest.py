"""These tests run where SGLang is installed, and say where it is not."""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SGLANG = importlib.util.find_spec("sglang")

# SGLang's Triton kernels without a GPU. Triton looks when it is imported, so it is said
# here, before any test is read; the engines' own processes do without.
if SGLANG:
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: more engine starts than CI has time for")


def pytest_collection_modifyitems(items):
    """Skip what is here, and say why, in an environment without SGLang."""
    if SGLANG:
        return
    skip = pytest.mark.skip(reason="SGLang is not installed here: make test-sglang")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)
