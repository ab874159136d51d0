"""A toy model on disk, and sessions on it; skipped where llama.cpp is absent."""

import pytest

from evict_profile.config import load_model
from evict_profile.config.sweep import LlamaSpec
from evict_profile.records import to_mapping
from runners.protocol import Refusal


@pytest.fixture(scope="session")
def libllama():
    pytest.importorskip("gguf", reason="needs evict-profile[llama]: make test-llama")
    from runners.llama_cpp import library

    try:
        return library.find("")
    except Refusal as refusal:
        pytest.skip(f"{refusal} (make test-llama)")


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A model of known routing: two layers, 16 experts, top-4."""
    pytest.importorskip("gguf", reason="needs evict-profile[llama]: make test-llama")
    from runners.llama_cpp.toy import ToyShape, write_toy

    path = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    write_toy(path, ToyShape())
    return path


@pytest.fixture(scope="session")
def options():
    """What a sweep of small cells opens a runner with."""
    return {
        "llama": to_mapping(LlamaSpec()),
        "places": [(1, 16, 1), (4, 32, 2)],
        "max_batch": 2,
        "max_context": 32,
        "max_width": 8,
    }


@pytest.fixture(scope="session")
def model(toy):
    return to_mapping(load_model(str(toy)))
