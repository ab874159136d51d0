"""A planted model on disk, and sessions on it; skipped where llama.cpp is absent."""

import pytest

from evict_profile.config import load_model
from evict_profile.config.sweep import LlamaSpec
from evict_profile.records import to_mapping
from runners.protocol import Refusal


@pytest.fixture(scope="session")
def libllama():
    """The library to test with."""
    pytest.importorskip("gguf", reason="needs evict-profile[llama]: make test-llama")
    from runners.llama_cpp import library

    try:
        return library.find("")
    except Refusal as refusal:
        pytest.skip(f"{refusal} (make test-llama)")


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """A planted model of two layers, 16 experts, top-4."""
    pytest.importorskip("gguf", reason="needs evict-profile[llama]: make test-llama")
    from runners.llama_cpp.planted import PlantedShape, write_planted

    path = tmp_path_factory.mktemp("gguf") / "planted.gguf"
    write_planted(path, PlantedShape())
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
def model(planted):
    """The planted model's shape, as the protocol sends it."""
    return to_mapping(load_model(str(planted)))
