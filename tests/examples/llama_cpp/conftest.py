"""A toy model on disk, and sessions on it; skipped where llama.cpp is absent."""

import pytest

from evict_profile.config import ModelSpec
from evict_profile.records import parse, to_mapping
from runners.protocol import Refusal


def model_of(path):
    """What a sweep of the file's YAML opens a runner with."""
    from examples.llama_cpp.model_file import gguf_mapping

    return to_mapping(parse(ModelSpec, gguf_mapping(path), str(path)))


@pytest.fixture(scope="session")
def libllama():
    pytest.importorskip("gguf")
    from examples.llama_cpp import library

    try:
        return library.find("")
    except Refusal as refusal:
        pytest.skip(str(refusal))


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A model of known routing: two layers, 16 experts, top-4."""
    pytest.importorskip("gguf")
    from examples.llama_cpp.toy import ToyShape, write_toy

    path = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    write_toy(path, ToyShape())
    return path


@pytest.fixture(scope="session")
def options():
    """What a sweep of small cells opens a runner with."""
    return {
        "engine": {},
        "places": [(1, 16, 1), (4, 32, 2)],
        "max_batch": 2,
        "max_context": 32,
        "max_width": 8,
    }


@pytest.fixture(scope="session")
def model(toy):
    return model_of(toy)
