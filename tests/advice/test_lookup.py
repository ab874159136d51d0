"""A deployment's table by name: a sweep's, a server's, an estimate, or none."""

import pytest

from evict_profile.advice.lookup import Names, look_up
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.served.table import ServedTable
from evict_profile.table import CostTable
from tests.advice.served import served_table
from tests.exported import shipped_table

TP1, TP4 = (
    f"nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp{tp}-ep1" for tp in (1, 4)
)
NAMES = Names("qwen3-30b-a3b", "h200", "sglang")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("EVICT_PROFILE_TABLES", str(tmp_path))
    return tmp_path


def put(place, table, name="a", **key):
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    replace(table, key=replace(table.key, **key)).save(folder / f"{table.version}.json")


def found(names=NAMES):
    return look_up(names, lambda line: None)


def names_of(table):
    return {"model": "qwen3-30b-a3b", "gpu": "NVIDIA H200", "engine": "sglang"}


def test_runs_of_a_server_come_before_an_estimate_and_a_sweep_before_both(
    place, saved_table
):
    estimate, swept = shipped_table(TP1), CostTable.load(saved_table)
    saved_table.unlink()
    put(place, estimate)
    assert found().table.origin == "composed"
    served = served_table((1, 0, 8.0), (1, 3, 16.0))
    put(place, served, "sglang-served", **names_of(served))
    assert isinstance(found().table, ServedTable)
    put(place, swept, "swept", **names_of(swept))
    assert found().table.origin == "measured"


def test_the_number_of_gpus_is_never_assumed_in_silence(place):
    put(place, shipped_table(TP4), "four")
    assert found().preface(NAMES) == "Of 4 GPUs (--tp 4): "
    put(place, shipped_table(TP1), "one")
    assert found().preface(NAMES) == "Of 1 GPU (--tp 1): "
    four = NAMES._replace(tp=4)
    assert found(four).preface(four) == "" and found(four).table.key.tp == 4


@pytest.mark.parametrize(
    ("engine", "is_found"), [("not stated", True), ("sglang", True), ("vllm", False)]
)
def test_runs_that_state_no_engine_are_of_any(place, engine, is_found):
    served = served_table((1, 0, 8.0), (1, 3, 16.0))
    put(place, served, "own-served", **names_of(served) | {"engine": engine})
    assert (found().table is not None) == is_found


def test_the_newest_of_several_versions_is_read_and_named(place):
    served, lines = served_table((1, 0, 8.0), (1, 3, 16.0)), []
    names = names_of(served) | {"engine": "sglang"}
    put(place, served, "sglang-served", **names)
    look_up(NAMES, lines.append)
    assert not lines
    put(place, replace(served, version="1.0.1"), "sglang-served", **names)
    assert look_up(NAMES, lines.append).table.version == "1.0.1"
    assert "1.0.1.json: is the newest of 2 versions" in lines[0]


@pytest.mark.parametrize(("tp", "said"), [(2, "Of 2 GPUs (--tp 2): "), (None, "")])
def test_a_number_of_gpus_that_no_run_states_is_not_made_up(place, tp, said):
    served = served_table((1, 0, 8.0), (1, 3, 16.0), tp=tp)
    put(place, served, "sglang-served", **names_of(served))
    assert found().preface(NAMES) == said


def test_several_sizes_without_one_are_named(place):
    put(place, shipped_table(TP4), "four")
    put(place, shipped_table(TP4), "two", tp=2)
    with pytest.raises(DataError, match="give also: --tp"):
        found()


def test_the_reason_names_tables_near_by(place):
    put(place, shipped_table(TP4))
    known = found(Names("qwen3-30b-a3b", "b200"))
    assert known.table is None
    assert known.reason.startswith("--engine would have to be given too; ")
    assert "--model qwen3-30b-a3b --gpu h200 --engine sglang --tp 4" in known.reason


def test_a_mistyped_model_is_the_reason_also_without_an_engine(place):
    known = found(Names("qwen3-30b-a3", "h200"))
    assert "nearest: qwen3-30b-a3b" in known.reason


def test_runs_of_a_model_that_nobody_knows_need_no_known_name(place):
    served = served_table((1, 0, 8.0), (1, 3, 16.0))
    names = names_of(served) | {"model": "qwen3-30b-a3"}
    put(place, served, "sglang-served", **names)
    assert found(NAMES._replace(model="qwen3-30b-a3")).table


def test_a_gpu_without_rows_is_the_reason_also_without_an_engine(place):
    reason = found(Names("qwen3-30b-a3b", "h2000")).reason
    assert reason.startswith(
        "no public rows are of h2000 under any engine; nearest: h200"
    )
    assert "under sglang" in found(NAMES._replace(gpu="hx")).reason


def test_a_format_in_the_models_name_is_asked_for(place):
    known = found(NAMES._replace(model="Qwen/Qwen3-30B-A3B-FP8"))
    assert "its name says FP8; give the weights' format with --dtype" in known.reason


def test_an_answer_says_whose_shape_it_has(place):
    put(place, shipped_table(TP1))
    names = NAMES._replace(model="Qwen/Qwen3-Coder-30B-A3B-Instruct")
    said = "Qwen3-Coder-30B-A3B-Instruct has the shape of qwen3-30b-a3b. Of 1 GPU"
    assert found(names).preface(names).startswith(said)
    assert found(NAMES).preface(NAMES).startswith("Of 1 GPU")


def test_one_that_is_not_there_is_estimated_once(wheel, place, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    lines = []
    names = NAMES._replace(rows=wheel)
    first = look_up(names, lines.append)
    assert first.table.origin == "composed"
    [kept] = place.rglob("qwen3-30b-a3b-*.json")
    assert f"kept: {kept}" in lines
    assert found(names).table == first.table


@pytest.mark.parametrize(
    ("model", "gpu", "near"),
    [
        ("qwen3-30b-a3b", "4090", True),
        ("qwen3-30b-a3b", "xeon", False),
        ("qwen3-30b-a3b", None, True),
        ("olmoe", "h200", False),
        (None, "h200", True),
        (None, "4090", False),
    ],
)
def test_a_near_table_shares_the_gpu_or_the_model_on_its_kind(place, model, gpu, near):
    put(place, shipped_table(TP4))
    assert ("there is a table" in found(Names(model, gpu)).reason) == near


def test_an_estimate_of_another_data_type_is_a_choice_and_no_answer(place):
    put(place, shipped_table(TP4), dtype="fp8_block")
    known = found()
    assert known.table is None
    assert "there is a table: " in known.reason and "--dtype fp8_block" in known.reason
    assert found(NAMES._replace(dtype="fp8_block")).table.key.dtype == "fp8_block"


def test_a_table_of_the_published_data_type_needs_no_dtype(place):
    put(place, shipped_table(TP4), "published")
    put(place, shipped_table(TP4), "other", dtype="fp8_block")
    assert found().table.key.dtype == "bfloat16"


def test_a_name_that_says_a_format_finds_tables_of_it_alone(place):
    put(place, shipped_table(TP4), "published")
    named = NAMES._replace(model="Qwen/Qwen3-30B-A3B-FP8")
    assert found(named).table is None
    put(place, shipped_table(TP4), "fp8", dtype="fp8_block")
    assert found(named).table.key.dtype == "fp8_block"


def test_an_answer_says_which_size_and_data_type_no_run_states(place):
    served = served_table((1, 0, 8.0), (1, 3, 16.0), tp=None)
    unstated = {"engine": "sglang", "dtype": "not stated"}
    put(place, served, "sglang-served", **names_of(served) | unstated)
    assert found().preface(NAMES) == ""
    assert found().preface(NAMES._replace(tp=8, dtype="bf16")) == (
        "The runs do not state their tensor-parallel size; 8 was asked for. "
        "The runs do not state their data type; bf16 was asked for. "
    )


def test_runs_of_another_size_or_data_type_are_refused(place):
    served = served_table((1, 0, 8.0), (1, 3, 16.0), tp=4)
    put(place, served, "sglang-served", **names_of(served) | {"dtype": "bfloat16"})
    assert found().preface(NAMES._replace(tp=4, dtype="bf16")) == ""
    with pytest.raises(DataError, match=r"size 4, and 8 was asked for"):
        found().preface(NAMES._replace(tp=8))
    with pytest.raises(DataError, match=r"data type bfloat16, and fp8 was asked for"):
        found().preface(NAMES._replace(dtype="fp8"))


def test_weights_in_mxfp4_are_found_however_activations_are_stored(place):
    put(place, shipped_table(TP4), dtype="w4a8_mxfp4_mxfp8")
    names = NAMES._replace(dtype="mxfp4")
    known = found(names)
    assert known.table
    assert known.preface(names) == "Of 4 GPUs (--tp 4): "
