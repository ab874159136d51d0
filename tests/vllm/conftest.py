"""These tests run where vLLM is installed, and say where it is not."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VLLM = importlib.util.find_spec("vllm")


def pytest_collection_modifyitems(items):
    """Skip what is here, and say why, in an environment without vLLM."""
    if VLLM:
        return
    skip = pytest.mark.skip(reason="vLLM is not installed here: docs/use/vllm.md")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)
