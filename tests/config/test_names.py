"""A published model is named by where it lies, and found by any name of its shape."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evict_profile.config import load_model
from evict_profile.config.load import known_models, model_label
from evict_profile.config.names import (
    model_named,
    name_suffixes,
    published_name,
    same_shape,
    shape_note,
)
from evict_profile.errors import ConfigError

NAMES = [path.stem for path in known_models()]
MIXTRAL = (Path(__file__).parent / "published/mixtral-8x7b.json").read_text()
DIGEST = "9c45f2b58a1b8b9d6b9f3b77a3c0d8b15b1f7c2e"


@pytest.fixture
def cached(tmp_path):
    """A snapshot as huggingface_hub keeps it: its files are links to blobs."""
    repository = tmp_path / "hub" / "models--Acme--Big-MoE-8x7B"
    snapshot = repository / "snapshots" / DIGEST
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / DIGEST[::-1]).write_text(MIXTRAL)
    link = snapshot / "config.json"
    link.symlink_to(Path("../../blobs") / DIGEST[::-1])
    return link


def test_a_model_of_the_cache_is_named_after_its_repository(cached):
    model = load_model(str(cached))
    assert model.name == "big-moe-8x7b"
    assert model.source == "https://huggingface.co/Acme/Big-MoE-8x7B"


def test_a_folder_is_taken_like_its_config(cached, monkeypatch):
    """Relative, with a slash at its end, as a link, and as the current folder."""
    expected = load_model(str(cached))
    snapshot = cached.parent
    monkeypatch.chdir(snapshot.parent)
    Path("current").symlink_to(snapshot)
    for given_folder in (f"{snapshot}/", DIGEST, f"./{DIGEST}", "current"):
        assert load_model(given_folder) == expected
        assert model_label(given_folder) == expected.name
    monkeypatch.chdir(snapshot)
    assert load_model(".") == expected


def test_a_folder_goes_before_a_known_model_of_its_name(tmp_path, monkeypatch):
    folder = tmp_path / "Qwen" / "Qwen3-30B-A3B"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is a folder without config"):
        load_model("Qwen/Qwen3-30B-A3B")
    (folder / "config.json").write_text(MIXTRAL)
    assert load_model("Qwen/Qwen3-30B-A3B").moe.num_experts == 8


def test_a_label_is_read_of_a_file_alone(tmp_path):
    assert model_label("any name") == "any name"
    assert model_label(str(tmp_path)) == str(tmp_path)
    path = tmp_path / "own.yaml"
    path.write_text("name: my-moe\n")
    assert model_label(str(path)) == "my-moe"


@pytest.mark.parametrize(
    ("path", "stated", "name"),
    [
        ("/data/Qwen3-30B-A3B-Instruct/config.json", "Qwen/Base", "Qwen3-30B-A3B-"),
        ("/data/own-moe.yaml", "", "own-moe"),
        ("/data/Qwen--Qwen3-30B-A3B_config.json", "", "Qwen/Qwen3-30B-A3B"),
        ("/x/models--solo/snapshots/main/config.json", "", "solo"),
        ("/x/models--A--Big/snapshots/main/Big-MoE-Q4_K.gguf", "", "Big-MoE-Q4_K"),
        ("/x/models--A--Big/snapshots/main/model.gguf", "", "A/Big"),
        ("/run/checkpoint-500/config.json", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_the_path_goes_before_what_the_config_states(path, stated, name):
    assert published_name(Path(path), stated).startswith(name)


@pytest.mark.parametrize(
    "folder",
    [
        *("blobs", "snapshots", "main", "model", "hf", "checkpoint-500", "config"),
        *(
            "tmp",
            "tmpx_k2v9qa",
            "tmp.Zq8vB1xYab",
            "step_1000",
            "step-500",
            "v2",
            DIGEST[:8],
        ),
        DIGEST,
    ],
)
@pytest.mark.parametrize(
    "stated",
    ["", "/home/me/big-moe", "./big-moe", "output/big-moe", "me/checkpoint-500"],
)
def test_a_name_that_identifies_nothing_is_refused(folder, stated):
    with pytest.raises(ConfigError, match="put it in a folder of the model's name"):
        published_name(Path("/srv") / folder / "config.json", stated)


@given(name=st.sampled_from(NAMES))
def test_every_model_with_a_file_may_name_its_folder(name):
    assert published_name(Path("/srv", name, "config.json"), "A/other") == name


KNOWN = {**{name: name for name in NAMES}, **same_shape()}
SUFFIXES = st.lists(st.sampled_from([*sorted(name_suffixes()), "2507", "0528"]))


@given(name=st.sampled_from(sorted(KNOWN)), suffixes=SUFFIXES)
def test_a_name_is_found_with_listed_suffixes(name, suffixes):
    given_name = f"Some/{'-'.join([name, *suffixes])}".upper()
    assert model_named(given_name, NAMES) == KNOWN[name]


def test_a_label_with_an_organisation_is_found_by_itself():
    assert model_named("Acme/New-MoE", ["Acme/New-MoE"]) == "Acme/New-MoE"


@given(
    name=st.sampled_from(sorted(KNOWN)),
    word=st.from_regex(r"[a-z]{1,12}[0-9.]{0,2}", fullmatch=True),
    suffixes=SUFFIXES,
)
def test_a_name_with_any_other_word_is_of_another_model(name, word, suffixes):
    assume(word not in name_suffixes() and f"{name}-{word}" not in KNOWN)
    assert model_named("-".join([name, word, *suffixes]), NAMES) is None


@given(name=st.sampled_from(sorted(KNOWN)), suffixes=SUFFIXES)
def test_a_name_of_another_models_shape_is_said_to_be_one(name, suffixes):
    given_name = "-".join([name, *suffixes])
    note = f"{given_name} has the shape of {KNOWN[name]}"
    said = shape_note(f"some/{given_name}", KNOWN[name])
    assert said == (note if name in same_shape() else "")


def test_a_table_that_is_labelled_with_the_name_itself_is_of_its_own_shape():
    assert shape_note("zai-org/GLM-4.6", "GLM-4.6") == ""


def test_every_model_of_the_same_shape_as_another_has_one():
    same = same_shape()
    assert set(same.values()) <= set(NAMES)
    assert not set(same) & set(NAMES)


@pytest.mark.parametrize("name", ["Step-3", "step3p7", "Step-3.7"])
def test_a_model_that_is_called_step_is_no_step_of_a_training(name, tmp_path):
    assert published_name(tmp_path / name / "config.json") == name
