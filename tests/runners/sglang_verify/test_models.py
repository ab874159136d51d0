"""Which folder SGLang is to load, and what a written config says."""

import json

import pytest

from evict_profile.config import load_model
from evict_profile.records import to_mapping
from runners.protocol import Refusal
from runners.sglang_verify import models


@pytest.fixture
def shape():
    return to_mapping(load_model("tiny-qwen3"))


@pytest.mark.parametrize("dense", [{}, {"dense_layers": 2, "dense_width": 96}])
def test_a_written_config_is_read_back_as_the_same_shape(shape, tmp_path, dense):
    given = {**shape, **dense}
    folder = models.model_folder(given, "", tmp_path)
    read = to_mapping(load_model(str(folder / "config.json")))
    assert {n for n in given if given[n] != read[n]} == {"name", "source"}


def test_fp8_in_blocks_is_written_as_checkpoints_of_it_say(shape, tmp_path):
    """Activations stay bfloat16."""
    folder = models.model_folder({**shape, "dtype": "fp8_block"}, "", tmp_path)
    written = json.loads((folder / "config.json").read_text())
    assert written["quantization_config"]["weight_block_size"] == [128, 128]
    assert written["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("attention", {"qk_norm": False}, "no norm of queries and keys"),
        ("attention", {"sliding_window": 128}, "a sliding window"),
        ("attention", {"kind": "mla"}, "mla attention"),
        ("moe", {"router": "sigmoid"}, "a sigmoid router"),
        ("moe", {"shared_width": 64}, "shared experts"),
        ("moe", {"groups": 2}, "expert groups"),
    ],
)
def test_other_shapes_are_refused(shape, tmp_path, part, change, says):
    other = {**shape, part: {**shape[part], **change}}
    with pytest.raises(Refusal, match=f"{says}.*its own config.json as --model"):
        models.model_folder(other, "", tmp_path)


def test_a_named_folder_comes_first(shape, tmp_path):
    named = models.write_config(tmp_path / "named", {})
    source = models.write_config(tmp_path / "source", {})
    given = {**shape, "source": str(source / "config.json")}
    assert models.model_folder(given, str(named), tmp_path) == named
    assert models.model_folder(given, "", tmp_path) == source
    with pytest.raises(Refusal, match=r"engine\.model '.*' is no folder with a config"):
        models.model_folder(shape, str(tmp_path), tmp_path)


def test_weights_are_loaded_where_they_are(tmp_path):
    folder = models.write_config(tmp_path / "model", {})
    assert models.load_format(folder) == "dummy"
    (folder / "model.safetensors").touch()
    assert models.load_format(folder) == "auto"


def test_a_written_head_fits_its_target(shape, tmp_path):
    target = models.model_folder(shape, "", tmp_path)
    written = models.draft_folder(target, "", tmp_path) / "config.json"
    head = json.loads(written.read_text())
    assert head["architectures"] == ["LlamaForCausalLMEagle3"]
    assert head["num_hidden_layers"] == 1
    assert head["hidden_size"] == shape["hidden_size"]
    assert head["draft_vocab_size"] <= head["vocab_size"] == shape["vocab_size"]
