"""The steps of the SGLang measurements: their order, and what they are told."""

from pathlib import Path

import pytest

from runners import gpu_world
from runners.gpu_sglang.__main__ import DRY, GPU, Whole, main
from runners.gpu_tables import Outcome, Step
from runners.gpu_world import WHOLE_LIMIT_S, Missing

RESULTS = {
    "kernels": "kernels.json",
    "profile": "tables/gpu/model/sglang/1.0.0.json",
    "serving": "serving/serving.json",
    "start-up": "start_up.json",
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
    ran: list[str] = []

    def run(step: Step, logs: Path) -> Outcome:
        ran.append(step.name)
        make(tmp_path, step.name)
        return Outcome(step.name, 0, 1.0, None)

    monkeypatch.setattr(gpu_world, "run", run)
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--out", str(tmp_path)]) == 0
    assert ran == list(RESULTS)


@pytest.mark.parametrize("name", ["serving", "start-up", "decision"])
def test_steps_wait_for_the_table(tmp_path: Path, name: str) -> None:
    """What needs a table says so, rather than fail on its own."""
    task = next(t for t in Whole(tmp_path, "py", GPU).tasks() if t.name == name)
    with pytest.raises(Missing):
        task.command()
    make(tmp_path, "profile")
    assert str(tmp_path / RESULTS["profile"]) in task.command() or name == "start-up"


def test_serving_fits_into_a_call_of_its_own(tmp_path: Path) -> None:
    """Else it would never begin."""
    limits = {task.name: task.limit_s for task in Whole(tmp_path, "py", GPU).tasks()}
    assert limits["serving"] < WHOLE_LIMIT_S
    assert limits["kernels"] + limits["profile"] < WHOLE_LIMIT_S


def test_sglang_runs_in_its_own_python(tmp_path: Path) -> None:
    """The toolkit's steps are told of it, and the others run in it."""
    make(tmp_path, "profile")
    for task in Whole(tmp_path, "/its/python", DRY).tasks():
        assert ("/its/python" in task.command()) == (task.name != "start-up")


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    """With the names of those that there are."""
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--only", "everything"])
