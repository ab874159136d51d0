"""What is run, what is skipped, and what a call says; every step is scripted."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import gpu_world
from runners.gpu_tables import Outcome, Step

RESULTS = {
    "train": "world/model.yaml",
    "sweep": "world-table/gpu/world/tree-decoding/1.0.0.json",
    "trace": "traces.parquet",
    "calibrate": "world-table/gpu/world/tree-decoding/1.0.1.json",
    "replay": "replay.json",
    "price": "model-table/gpu/model/torch-moe/1.0.0.json",
    "drive": "trace_driven.json",
    "clock": "wall_clock.json",
    "budgets": "budgets.parquet",
    "front": "budget.json",
    "overhead": "budget_overhead.json",
    "both": "budgets_clock.json",
}
Call = Callable[..., int]


class Scripted:
    """Runs no step, makes its result; those in `failing` fail.

    `took_s` is what each step is said to have taken on the clock that the script reads.
    """

    def __init__(self, out: Path) -> None:
        self.out, self.steps, self.failing = out, list[Step](), set[str]()
        self.now_s, self.took_s = 0.0, 1.0

    def run(self, step: Step, logs: Path) -> Outcome:
        """In the place of a process."""
        self.steps.append(step)
        self.now_s += self.took_s
        status = 2 if step.name in self.failing else 0
        if not status:
            made = self.out / RESULTS[step.name]
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(step.name)
        (logs / f"{step.name}.log").write_text("said")
        return Outcome(step.name, status, self.took_s, None)

    @property
    def names(self) -> list[str]:
        """Steps that ran, in order."""
        return [step.name for step in self.steps]

    def command(self, name: str) -> list[str]:
        """The command of a step that ran."""
        return list(next(step.command for step in self.steps if step.name == name))


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Steps without processes."""
    made = Scripted(tmp_path / "out")
    monkeypatch.setattr(gpu_world, "run", made.run)
    monkeypatch.setattr(gpu_world.time, "monotonic", lambda: made.now_s)
    return made


@pytest.fixture
def call(scripted: Scripted) -> Call:
    """One call of the script."""
    return lambda *words: gpu_world.main(["--out", str(scripted.out), *words])


def test_everything_in_order(scripted: Scripted, call: Call) -> None:
    """Where there is time for all, one call does all."""
    assert call() == 0
    assert scripted.names == list(RESULTS)


def test_what_is_there_is_skipped(scripted: Scripted, call: Call) -> None:
    """The same command again has nothing to do."""
    call()
    scripted.steps.clear()
    assert call() == 0
    assert scripted.names == []


def test_a_few_calls_do_it_all(scripted: Scripted, call: Call) -> None:
    """One that trains, two that are cut short, and the rest."""
    scripted.took_s = 520.0
    assert call() == 1
    assert scripted.names == ["train", "sweep"]
    scripted.took_s = 150.0
    assert [call(), call(), call()] == [1, 1, 0]
    assert scripted.names == list(RESULTS)


def test_a_step_gets_no_more_than_is_left(scripted: Scripted, call: Call) -> None:
    """One that can go on later is begun even so; another waits."""
    scripted.took_s = 500.0
    call()
    assert scripted.steps[1].limit_s == pytest.approx(70.0)


def test_a_failure_costs_itself_and_what_needs_it(
    scripted: Scripted, call: Call
) -> None:
    """The full model is priced though the world could not be swept."""
    scripted.failing = {"sweep"}
    assert call() == 1
    own = ["train", "sweep", "trace", "price", "budgets", "overhead"]
    assert scripted.names == own
    told = json.loads((scripted.out / "summary.json").read_text())[0]
    calibrate = next(outcome for outcome in told if outcome["name"] == "calibrate")
    assert "world-table" in calibrate["result"]


def test_halves_of_the_prompts_are_kept_apart(scripted: Scripted, call: Call) -> None:
    """What is calibrated on one half is judged on the other, with the table made."""
    call()
    learnt, judged = scripted.command("calibrate"), scripted.command("replay")
    assert learnt[learnt.index("--part") + 1] == "1/2"
    for command in (judged, scripted.command("clock"), scripted.command("both")):
        assert command[command.index("--part") + 1] == "2/2"
        assert command[command.index("--table") + 1].endswith("1.0.1.json")


def test_the_sweep_is_over_the_world_trained(scripted: Scripted, call: Call) -> None:
    """Not over the one that is shipped."""
    call()
    spec = json.loads((scripted.out / "world-table.json").read_text())
    assert spec["world"] == str(scripted.out / "world")
    assert spec["runner"] == "tree_decoding"


def test_only_some_steps(scripted: Scripted, call: Call) -> None:
    """Those named; a name that is none is refused."""
    assert call("--only", "train", "--minutes", "1") == 0
    assert scripted.names == ["train"]
    assert scripted.command("train")[-2:] == ["--minutes", "1.0"]
    with pytest.raises(SystemExit):
        call("--only", "nothing")


def test_results_can_be_carried_away(scripted: Scripted, call: Call) -> None:
    """Tables, numbers and logs of all calls; no weights."""
    call()
    call()
    with tarfile.open(scripted.out / "results.tar.gz") as tar:
        names = set(tar.getnames())
    assert {"replay.json", "summary.json", "logs-1/train.log"} <= names
    assert RESULTS["calibrate"] in names
    assert not any(name.startswith("world/") for name in names)
