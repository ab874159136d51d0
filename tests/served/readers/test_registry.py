"""Any file is read by what it shows, and what is none is told all kinds."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.served.readers import READERS, read_runs
from tests.served.readers.reading import SAMPLES, runs_of

STATE_NO_K = {
    "llama-cli.log": 0,
    "llama-server.log": 3,
    "sglang-console.txt": 3,
    "sglang-metrics.txt": 3,
}


def takers(name):
    text = (SAMPLES / name).read_text()
    return next(each.name for each in READERS if each.takes(text))


def test_each_reader_has_a_sample():
    found = {takers(path.name) for path in SAMPLES.iterdir()}
    assert found == {each.name for each in READERS}


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
def test_each_sample_is_read_and_checked(name):
    runs = read_runs(SAMPLES / name, STATE_NO_K.get(name))
    assert runs and all(run.checked() is run for run in runs)
    assert len({run.source for run in runs}) == len(runs)


@pytest.mark.parametrize("name", STATE_NO_K)
def test_k_is_asked_for_where_nothing_states_it(name):
    with pytest.raises(ConfigError, match=rf"give K as \S*{name}=K, 0 for plain"):
        read_runs(SAMPLES / name)


@pytest.mark.parametrize(
    "name", ["vllm-result.json", "vllm-console.txt", "sglang.log", "vllm-metrics.txt"]
)
def test_a_k_that_contradicts_the_file_is_refused_with_both(name):
    with pytest.raises(ConfigError, match="states K = 3, and K = 5 was given"):
        read_runs(SAMPLES / name, 5)


@pytest.mark.parametrize("drafts", [None, 2])
def test_a_file_that_no_reader_takes_is_told_what_to_give(tmp_path, drafts):
    with pytest.raises(ConfigError) as caught:
        runs_of(tmp_path, "GET /v1/models 200\n", drafts)
    said = str(caught.value)
    assert all(word in said for word in ("CSV", "SGLang, vLLM or llama.cpp", "probe"))
    assert "=K" not in said and "\n" not in said
    assert len(said) < len(str(tmp_path)) + 300


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "ggml_cuda_init: found 1 CUDA devices:\n| model | size | params | backend "
            "| ngl | test | t/s |\n| --- | --: | --: | --- | --: | --: | --: |\n",
            "is a table of llama-bench; give its -o json",
        ),
        (
            "main: n_kv_max = 32768, n_batch = 2048\n\n|    PP |     TG |    B | "
            "  N_KV |   T_PP s |\n|-------|--------|------|--------|----------|\n",
            "is a table of llama-batched-bench; give --output-format jsonl",
        ),
    ],
)
def test_a_table_that_llama_cpp_prints_is_told_what_to_give(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        runs_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("[]", "holds no run"),
        ("batch,K,tok/s\n", "holds no run"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        ("batch,K\n".encode("utf-16"), "no text in UTF-8"),
        (b"batch,K,step ms\n8,0,\0\n", "no text in UTF-8"),
        ('{"a": 1', "is not whole JSON"),
        ("{}\n[1]", "holds JSON that is no result"),
        ("[" * 10**5, "is of no kind|not whole JSON"),
        ("{" + '"a":{' * 10**5, "not whole JSON"),
    ],
)
def test_odd_files_are_one_sentence(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        runs_of(tmp_path, text, 3)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_folders_pipes_and_missing_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "d.jsonl").mkdir()
    for name in ("pipe", "d.jsonl", "missing"):
        with pytest.raises(ConfigError, match=f"{name}: cannot be read"):
            read_runs(tmp_path / name)


@given(st.sampled_from(sorted(SAMPLES.iterdir())), st.floats(0.0, 1.0), st.text())
def test_a_file_that_broke_is_runs_or_one_sentence(tmp_path_factory, path, at, junk):
    content = path.read_text()
    cut = int(at * len(content))
    broken = content[:cut] + junk + content[cut + len(junk) :]
    folder = tmp_path_factory.mktemp("broken")
    try:
        runs = runs_of(folder, broken, STATE_NO_K.get(path.name))
    except ConfigError as error:
        assert "\n" not in str(error).replace(junk, "")
    else:
        assert all(run.checked() for run in runs)
