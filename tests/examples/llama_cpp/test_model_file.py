"""A model's shape read from a GGUF file."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from evict_profile.config import load_model
from evict_profile.errors import ConfigError

pytest.importorskip("gguf")

from gguf import GGUFWriter
from typer.testing import CliRunner

from examples.llama_cpp.__main__ import app
from examples.llama_cpp.model_file import read_gguf
from examples.llama_cpp.toy import ToyShape, finish, put, write_toy

SHAPE = ToyShape(hidden=64, layers=2, kind="Q8_0")


def written(path):
    """The model of the YAML that the command prints."""
    done = CliRunner().invoke(app, ["model", str(path)])
    assert done.exit_code == 0, done.output
    file = path.with_suffix(".yaml")
    file.write_text(done.stdout)
    return load_model(str(file))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    made = tmp_path_factory.mktemp("gguf") / "Planted-Q8.gguf"
    write_toy(made, SHAPE)
    return made


def test_the_shape_is_the_file_s(path):
    """Sizes from the metadata, layers, width and type from the tensors."""
    model = written(path)
    assert (model.name, model.dtype) == ("planted-q8", "q8_0")
    assert (model.hidden_size, model.num_layers, model.dense_layers) == (64, 2, 0)
    assert (model.moe.num_experts, model.moe.top_k) == (16, 4)
    assert (model.moe.expert_width, model.vocab_size) == (32, 512)
    assert model.attention.qk_norm


def test_bytes_are_those_stored(path):
    """Blocks of 32 values in 34 bytes."""
    stored = 3 * 64 * 32 * 34 // 32
    assert read_gguf(path).bytes_per_expert == stored
    assert written(path).bytes_per_expert == stored


def test_another_type_is_another_digest(path, tmp_path):
    """The digest is of the tensors' names, types and shapes."""
    other = tmp_path / "other.gguf"
    write_toy(other, replace(SHAPE, kind="F32"))
    assert read_gguf(other).digest != read_gguf(path).digest


ATTENTION, EXPERTS = ("attn_q", "attn_k", "attn_output"), ("ffn_up_exps",)


@pytest.mark.parametrize(
    ("layers", "window", "kinds"),
    [
        ([("ssm_in", "ssm_out"), EXPERTS, ATTENTION], {}, {"mamba": 1, "none": 1}),
        ([("attn_qkv", "ssm_ba"), ATTENTION], {}, {"linear": 1}),
        ([("shortconv.in_proj",), ATTENTION], {}, {"conv": 1}),
        ([ATTENTION] * 3, [True, True, False], {"sliding": 2}),
        ([ATTENTION] * 3, None, {}),
    ],
)
def test_each_layer_is_what_its_tensors_and_the_pattern_say(
    tmp_path, layers, window, kinds
):
    path = tmp_path / "hybrid.gguf"
    writer = GGUFWriter(path, "new-moe")
    writer.add_block_count(len(layers))
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count([0, *[4] * (len(layers) - 1)])
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_vocab_size(8)
    if window != {}:
        writer.add_sliding_window(16)
    if window:
        writer.add_sliding_window_pattern(window)
    for layer, names in enumerate(layers):
        for name in names:
            shape = (2, 16, 8) if name in EXPERTS else (4, 4)
            put(writer, f"blk.{layer}.{name}", np.ones(shape))
        put(writer, f"blk.{layer}.ffn_down_exps", np.ones((2, 8, 16)))
    finish(writer)
    model = written(path)
    assert {other.kind: other.layers for other in model.other_layers} == kinds
    assert (model.moe.gated, model.moe.expert_hidden, model.moe.expert_width) == (
        False,
        8,
        16,
    )
    assert model.moe.shared_width == 0  # no key says that any is shared
    unknown = any("is unknown" in caveat for caveat in model.notes)
    assert unknown == (window is None)


def test_a_file_that_is_none_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("no model")
    done = CliRunner().invoke(app, ["model", str(path)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {path}: is no readable GGUF file")


def test_a_dense_model_is_refused(tmp_path):
    path = tmp_path / "dense.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="holds a dense model"):
        read_gguf(path)


def test_a_file_that_names_no_architecture_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(GGUFWriter, "add_architecture", lambda writer: None)
    path = tmp_path / "none.gguf"
    finish(GGUFWriter(path, "llama"))
    with pytest.raises(ConfigError, match=r"has no general\.architecture; describe"):
        read_gguf(path)


def test_without_the_package_its_command_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install gguf==\d"):
        read_gguf(path)
