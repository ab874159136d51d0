"""The order of the measurements on a lent GPU, and what they are told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import gpu_tables
from runners.gpu_calls import CALL_S, SOME_MISSING, SOME_REFUSED
from runners.gpu_tables import DRY, GPU, Whole
from tests.runners.scripted_steps import Scripted, without_processes

Call = Callable[..., int]
FIRST, *OTHERS = GPU.models
ANSWERS = ("attention_backend", "dummy", "l2_residency")
RESULTS = {
    "decision": "bench.json",
    **{name: f"{name}.json" for name in ANSWERS},
    **{f"trace_driven-{b}": f"trace_driven-{b}.json" for b in GPU.batches},
    **{
        f"{model}-{seed}-table": f"{model}-{seed}-table/gpu/model/torch-moe/1.0.0.json"
        for model in GPU.models
        for seed in (0, 1)
    },
}


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Steps without processes."""
    return without_processes(Scripted(tmp_path / "out", RESULTS), monkeypatch)


@pytest.fixture
def call(scripted: Scripted, tmp_path: Path) -> Call:
    """One call of the script, with a trace."""
    trace = tmp_path / "trace.parquet"
    trace.write_text("a trace")
    words = ["--out", str(scripted.out), "--traces", str(trace)]
    return lambda *more: gpu_tables.main([*words, *more])


def test_the_most_wanted_comes_first(scripted: Scripted, call: Call) -> None:
    """A table of the first model, then the others, then the trace over the first."""
    assert call() == 0
    order = scripted.names
    wanted = ["attention_backend", "decision", f"{FIRST}-0", f"{FIRST}-0-table"]
    wanted += ["dummy", *(f"{model}-0" for model in OTHERS), f"{FIRST}-1"]
    wanted += ["trace_driven-1", "trace_driven-4", "nuisance", "l2_residency"]
    assert [name for name in order if name in wanted] == wanted
    assert order[-len(OTHERS) * 2 :] == [
        f"{model}-{seed}-table" for seed in (0, 1) for model in OTHERS
    ]


def test_the_first_call_holds_a_table(tmp_path: Path) -> None:
    """Whatever the steps before it and it itself take of their limits."""
    plan = Whole(tmp_path, GPU, None).steps()
    names = [step.name for step in plan]
    until = plan[: names.index(f"{FIRST}-0-table")]
    assert sum(step.limit_s for step in until if not step.goes_on) < CALL_S - 60 * 3


def test_sweeps_of_one_model_differ_in_their_seed(
    scripted: Scripted, call: Call
) -> None:
    """And in nothing else but the name."""
    call()
    one, other = (
        json.loads((scripted.out / f"{FIRST}-{seed}.json").read_text())
        for seed in (0, 1)
    )
    assert {key for key in one if one[key] != other[key]} == {"name", "seed"}
    assert one["graphs"] and one["layers"] == "auto"


def test_a_refused_table_costs_only_itself(scripted: Scripted, call: Call) -> None:
    """The dummy profile needs the samples, and the trace takes the other table."""
    scripted.refused = {f"{FIRST}-0-table"}
    assert call() == SOME_REFUSED
    assert scripted.names.count("dummy") == 1
    assert f"{FIRST}-1-table" in scripted.after("trace_driven-1", "--table")
    scripted.names.clear()
    assert call() == SOME_REFUSED
    assert scripted.names == []


def test_a_sweep_that_failed_is_measured_again(scripted: Scripted, call: Call) -> None:
    """Until then nothing is made of what it has."""
    scripted.failing = {f"{FIRST}-0"}
    assert call() == SOME_MISSING
    waiting = {f"{FIRST}-0-table", "dummy", f"{FIRST}-repeat"}
    assert not waiting & set(scripted.names)
    scripted.failing = set()
    assert call() == 0


def test_the_trace_is_walked_one_batch_a_run(scripted: Scripted, call: Call) -> None:
    """With drafting priced as in the world that is shipped."""
    call()
    for batch in GPU.batches:
        name = f"trace_driven-{batch}"
        assert scripted.after(name, "--batch") == str(batch)
        assert scripted.commands[name].count("--batch") == 1
        world_table = Path(scripted.after(name, "--world-table"))
        assert world_table.is_file() and "small-world" in str(world_table)


def test_without_a_trace_these_steps_say_what_they_need(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """All others run."""
    assert gpu_tables.main(["--out", str(scripted.out)]) == SOME_MISSING
    assert "needs --traces FILE" in capsys.readouterr().out
    missing = json.loads((scripted.out / "summary.json").read_text())["missing"]
    assert missing == [f"trace_driven-{batch}" for batch in GPU.batches]


def test_a_trace_that_is_none_is_refused(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first minute of the GPU is spent."""
    with pytest.raises(SystemExit) as end:
        gpu_tables.main(["--out", str(scripted.out), "--traces", "nowhere.parquet"])
    assert end.value.code == 2
    assert "--traces nowhere.parquet: is no file" in capsys.readouterr().err
    assert not scripted.out.exists()


def test_a_dry_run_is_not_taken_for_a_real_one(
    scripted: Scripted, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its steps have the same names."""
    assert call("--dry-run", "--only", "doctor") == 0
    assert call("--only", "doctor") == 2
    assert "scale: gpu here, dry there" in capsys.readouterr().err


def test_a_dry_run_compares_like_with_like(scripted: Scripted, call: Call) -> None:
    """Both sweeps of a model are measured, or both on paper, wherever OUT is."""
    call("--dry-run")
    for model in DRY.models:
        one, other = (
            json.loads((scripted.out / f"{model}-{seed}.json").read_text())
            for seed in (0, 1)
        )
        assert one["runner"] == other["runner"]
    on_paper = json.loads((scripted.out / f"{DRY.models[0]}-0.json").read_text())
    assert on_paper["gpu"] == "slow.yaml"
