"""The steps of the SGLang measurements: their order, and what they are told."""

import sys
from pathlib import Path

import pytest

from runners.gpu_calls import CALL_S
from runners.gpu_sglang.__main__ import DRY, GPU, Whole, main
from runners.gpu_steps import Missing
from tests.runners.scripted_steps import Scripted, without_processes

RESULTS = {
    "kernels": "kernels.json",
    "sweep": "done/sweep.json",
    "sweep-table": "sweep-table/gpu/model/sglang/1.0.0.json",
    "start-up": "start_up.json",
    "serving": "serving/serving.json",
    "decision": "decision.json",
}


def make(out: Path, name: str) -> None:
    """A step's result."""
    made = out / RESULTS[name]
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(name)


def test_all_steps_run_and_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order; a second call has nothing to do."""
    scripted = without_processes(Scripted(tmp_path, RESULTS), monkeypatch)
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--out", str(tmp_path)]) == 0
    assert scripted.names == list(RESULTS)


def test_a_refused_table_stops_only_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a dummy profile is told all the same, and nothing swept again."""
    scripted = without_processes(Scripted(tmp_path, RESULTS), monkeypatch)
    scripted.refused = {"sweep-table"}
    assert main(["--out", str(tmp_path)]) == 1
    assert main(["--out", str(tmp_path)]) == 1
    assert scripted.names == ["kernels", "sweep", "sweep-table", "start-up"]


@pytest.mark.parametrize("name", ["serving", "decision"])
def test_steps_wait_for_the_table(tmp_path: Path, name: str) -> None:
    """What needs a table says so, rather than fail on its own."""
    task = next(t for t in Whole(tmp_path, "py", GPU).steps() if t.name == name)
    with pytest.raises(Missing):
        task.command()
    make(tmp_path, "sweep-table")
    assert str(tmp_path / RESULTS["sweep-table"]) in task.command()


def test_each_call_holds_what_it_is_to_do(tmp_path: Path) -> None:
    """The first the table; serving comes behind what is quick, else never."""
    limits = {step.name: step.limit_s for step in Whole(tmp_path, "py", GPU).steps()}
    assert sum(limits[n] for n in ("kernels", "sweep", "sweep-table")) < CALL_S
    assert limits["start-up"] + limits["serving"] < CALL_S


def test_sglang_runs_in_its_own_python(tmp_path: Path) -> None:
    """The toolkit's steps are told of it, and the others run in it."""
    make(tmp_path, "sweep")
    make(tmp_path, "sweep-table")
    own = {"sweep-table", "start-up"}
    for step in Whole(tmp_path, "/its/python", DRY).steps():
        assert ("/its/python" in step.command()) == (step.name not in own)


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    """With the names of those that there are."""
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--only", "everything"])


def test_a_python_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything runs."""
    with pytest.raises(SystemExit) as end:
        main(["--out", str(tmp_path / "out"), "--python", "./no-python"])
    assert end.value.code == 2
    assert "--python ./no-python: is no program" in capsys.readouterr().err


def test_steps_are_told_a_whole_path_of_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in another folder than the call."""
    scripted = without_processes(Scripted(tmp_path / "out", RESULTS), monkeypatch)
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    main(["--out", "out", "--python", "./python", "--only", "kernels"])
    assert scripted.commands["kernels"][0] == str(own)
