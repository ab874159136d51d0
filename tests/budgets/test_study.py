"""The whole front, and the command that draws it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evict_profile import cli
from evict_profile.budgets.schema import NONE
from evict_profile.budgets.study import SCHEMA, Bounds, BudgetOptions, Study, study
from evict_profile.errors import TraceError
from evict_profile.io import finite
from evict_profile.report.budgets_page import page
from tests.budgets.synthetic import ABOUT, both, setting, table_of, typical, write


def test_all_is_told_of_all_workloads_and_of_each(studied: Study) -> None:
    """With advice, comparisons and what hindsight needs."""
    assert [part.front.workload for part in studied.parts] == ["mixed", "code", "prose"]
    for part in studied.parts:
        assert part.advice.required == Bounds(agreement=0.98)
        assert part.front.comparisons
        assert part.pareto


def test_only_workloads_that_are_asked_for(
    recording_file: Path, table_file: Path
) -> None:
    """One alone has no mix, and no section of its own."""
    found = study(BudgetOptions([recording_file], table_file, ("prose",)))
    assert [part.front.workload for part in found.parts] == ["prose"]
    assert 'id="workloads"' not in page(found)


def test_a_table_of_another_model_is_refused(table_file: Path, tmp_path: Path) -> None:
    """Its experts are not those that were woken."""
    plain = setting(NONE)
    other = table_of(both(plain), [plain], replace(ABOUT, top_k=2))
    path = write(tmp_path / "other.parquet", other)
    with pytest.raises(TraceError, match=r"top-2 \(tiny\), and the table prices .*-4"):
        study(BudgetOptions([path], table_file))


def test_numbers_are_json(studied: Study) -> None:
    """Every setting of every workload."""
    found = json.loads(studied.as_json())
    assert found["schema"] == SCHEMA
    points = found["parts"][0]["front"]["points"]
    assert len(points) == len(studied.whole.front.points)
    assert points[1]["speedup"]["low"] <= points[1]["speedup"]["value"]
    assert found["parts"][0]["advice"]["required"]["agreement"] == 0.98


def test_unbounded_intervals_are_null(table_file: Path, tmp_path: Path) -> None:
    """JSON knows no infinity."""
    path = write(tmp_path / "few.parquet", typical(prompts=2, workloads=("code",)))
    found = json.loads(study(BudgetOptions([path], table_file)).as_json())
    speed = found["parts"][0]["front"]["points"][1]["tokens_per_s"]
    assert speed["low"] is speed["high"] is None
    assert found["unseen"] is None
    assert "2 prompts are too few to tell" in found["caveats"][-1]
    assert finite({"a": [float("nan"), 1.0], "b": "c"}) == {"a": [None, 1.0], "b": "c"}


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The command in this process; its exit code."""
    call = ["evict-profile", "budget", *map(str, words)]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_command_writes_page_and_numbers(
    recording_file: Path,
    table_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a quality that some budget keeps, and with nothing else changed."""
    monkeypatch.chdir(tmp_path)
    done = run(
        monkeypatch, recording_file, "--table", table_file, "--kl", 0.07, "--accept",
        0.9, "--out", "page.html", "--json", "numbers.json",
    )  # fmt: skip
    assert done == 0
    said = capsys.readouterr().out
    assert "LOSSY" in said
    assert "a divergence of at most 0.07 nats a token and an accept length of" in said
    assert "report: page.html" in said
    assert "numbers: numbers.json" in said
    assert "<svg" in (tmp_path / "page.html").read_text()
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found["parts"][0]["advice"]["choice"] == "take the budget"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workload", "poems"), "it holds code, prose"),
        (("--agreement", "98"), "--agreement 98 cannot be"),
        (("--out", "."), "is a folder"),
        (("--json", ""), "is a folder"),
        (("--accept", "5"), "--accept 5 cannot be"),
    ],
)
def test_mistakes_are_one_sentence(
    recording_file: Path,
    table_file: Path,
    words: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And exit code 2."""
    assert run(monkeypatch, recording_file, "--table", table_file, *words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1


def test_the_tables_samples_are_not_written_over(
    recording_file: Path,
    table_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Though nobody named them."""
    samples = table_file.with_suffix(".parquet")
    words = (recording_file, "--table", table_file, "--out", samples)
    assert run(monkeypatch, *words) == 2
    assert "1.0.0.parquet, which this command reads" in capsys.readouterr().err
    assert not samples.exists()


def test_a_table_is_no_recording(
    table_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, and no traceback."""
    assert run(monkeypatch, table_file, "--table", table_file) == 2
    assert "is no whole Parquet file" in capsys.readouterr().err


def test_bounds_reach_the_advice(recording_file: Path, table_file: Path) -> None:
    """What is asked stands beside what is advised."""
    found = study(BudgetOptions([recording_file], table_file, bounds=Bounds(loss=0.05)))
    assert found.whole.advice.required == Bounds(loss=0.05)
