"""A model's shape read from a GGUF file."""

import sys
from dataclasses import replace

import pytest

from evict_profile.config import load_model
from evict_profile.config.gguf import read_gguf
from evict_profile.errors import ConfigError
from tests.command import refused

pytest.importorskip("gguf", reason="needs evict-profile[llama]: make test-llama")

from gguf import GGUFWriter

from runners.llama_cpp.toy import ToyShape, write_toy

SHAPE = ToyShape(hidden=64, layers=2, kind="Q8_0")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("gguf") / "Planted-Q8.gguf"
    write_toy(made, SHAPE)
    return made


def test_the_shape_is_the_file_s(path):
    """Sizes from the metadata, layers, width and type from the tensors."""
    model = load_model(str(path))
    assert (model.name, model.dtype) == ("planted-q8", "q8_0")
    assert (model.hidden_size, model.num_layers, model.dense_layers) == (64, 2, 0)
    assert (model.moe.num_experts, model.moe.top_k) == (16, 4)
    assert (model.moe.expert_width, model.vocab_size) == (32, 512)
    assert model.attention.qk_norm


def test_bytes_are_those_stored(path):
    """Blocks of 32 values in 34 bytes."""
    stored = 3 * 64 * 32 * 34 // 32
    assert read_gguf(path).bytes_per_expert == stored
    assert load_model(str(path)).bytes_per_expert == stored


def test_another_type_is_another_digest(path, tmp_path):
    """The digest is of the tensors' names, types and shapes."""
    other = tmp_path / "other.gguf"
    write_toy(other, replace(SHAPE, kind="F32"))
    assert read_gguf(other).digest != read_gguf(path).digest


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "text.gguf").write_text("no model")
    words = ("profile", "--model", "text.gguf", "--sweep", "llama")
    assert "is no readable GGUF file" in refused(*words, folder=tmp_path)


def test_a_dense_model_is_refused(tmp_path):
    path = tmp_path / "dense.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="holds a dense model"):
        read_gguf(path)


def test_without_the_package_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install 'evict-profile\[llama\]'"):
        load_model(str(path))
