"""What is run, what is skipped, and what a call says; every step is scripted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import gpu_world
from tests.runners.scripted_steps import Scripted, without_processes

RESULTS = {
    "train": "world/model.yaml",
    "sweep": "",
    "sweep-table": "sweep-table/gpu/world/tree-decoding/1.0.0.json",
    "trace": "traces.parquet",
    "calibrate": "sweep-table/gpu/world/tree-decoding/1.0.1.json",
    "replay": "replay.json",
    "price": "",
    "price-table": "price-table/gpu/model/torch-moe/1.0.0.json",
    "drive-1": "trace_driven-1.json",
    "drive-4": "trace_driven-4.json",
    "clock": "wall_clock.json",
    "budgets": "budgets.parquet",
    "front": "budget.json",
    "overhead": "budget_overhead.json",
    "both": "budgets_clock.json",
}
Call = Callable[..., int]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Steps without processes."""
    results = {name: result for name, result in RESULTS.items() if result}
    return without_processes(Scripted(tmp_path / "out", results), monkeypatch)


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
    scripted.names.clear()
    assert call() == 0
    assert scripted.names == []


def test_a_few_calls_do_it_all(scripted: Scripted, call: Call) -> None:
    """One that trains, some that are cut short, and the rest."""
    scripted.took_s = 520.0
    assert call() == 1
    assert scripted.names == ["train", "sweep"]
    assert scripted.limits["sweep"] == pytest.approx(50.0)
    scripted.took_s = 150.0
    assert [call(), call(), call(), call()] == [1, 1, 1, 0]
    assert sorted(scripted.names) == sorted(RESULTS)


def test_a_failure_costs_itself_and_what_needs_it(
    scripted: Scripted, call: Call
) -> None:
    """The full model is priced though the world could not be swept."""
    scripted.failing = {"sweep"}
    assert call() == 1
    own = ["train", "sweep", "trace", "price", "price-table", "budgets", "overhead"]
    assert scripted.names == own
    told = json.loads((scripted.out / "summary.json").read_text())["calls"][0]
    calibrate = next(outcome for outcome in told if outcome["name"] == "calibrate")
    assert "sweep-table" in calibrate["result"]


def test_a_refused_table_is_not_swept_again(scripted: Scripted, call: Call) -> None:
    """The samples are kept; what waits for the table stays missing."""
    scripted.refused = {"price-table"}
    assert call() == 1
    scripted.names.clear()
    assert call() == 1
    assert scripted.names == []


def test_the_trace_is_walked_one_batch_a_run(scripted: Scripted, call: Call) -> None:
    """So that a call cut short keeps the batches that are done."""
    call()
    assert [scripted.after(f"drive-{b}", "--batch") for b in (1, 4)] == ["1", "4"]


def test_halves_of_the_prompts_are_kept_apart(scripted: Scripted, call: Call) -> None:
    """What is calibrated on one half is judged on the other, with the table made."""
    call()
    assert scripted.after("calibrate", "--part") == "1/2"
    for judged in ("replay", "clock", "both"):
        assert scripted.after(judged, "--part") == "2/2"
        assert scripted.after(judged, "--table").endswith("1.0.1.json")


def test_the_sweep_is_over_the_world_trained(scripted: Scripted, call: Call) -> None:
    """Not over the one that is shipped; its plan is the same wherever OUT is."""
    call()
    spec = json.loads((scripted.out / "sweep.json").read_text())
    assert spec["world"] == "world"
    assert spec["runner"] == "tree_decoding"
    assert scripted.after("sweep", "--model") == str(scripted.out / "world/model.yaml")


def test_training_can_be_shortened(scripted: Scripted, call: Call) -> None:
    """As is wise where it was never tried."""
    assert call("--only", "train", "--minutes", "0.3") == 0
    assert scripted.names == ["train"]
    assert scripted.after("train", "--minutes") == "0.3"


def test_another_recipe_is_refused(
    scripted: Scripted, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the tiny one left is not taken for the real one's."""
    assert call("--recipe", "tiny") == 0
    assert call() == 2
    assert "scale: gpu here, tiny there" in capsys.readouterr().err
