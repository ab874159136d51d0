"""The whole comparison on a tiny world; what is said of its numbers."""

import json
from pathlib import Path

import pytest

from benchmarks import budgets_clock
from benchmarks.agreement import Judge
from benchmarks.budgets_clock import Outcome, main
from benchmarks.budgets_told import Row
from benchmarks.turns import Interval, Measured, Text
from evict_profile.replay.policies import AR, DEPTH_LINKS, FULL_TREE
from evict_profile.table import CostTable, save_table
from runners.small_world.weights import SmallWorld
from tests.benchmarks.small_session import read_random
from tests.benchmarks.told_rows import ONE, speed
from tests.traces.synthetic import Plan, write_trace


class Made(Outcome):
    """An outcome of which only rows are known; one is as fast as another says."""

    def __init__(self, rows: list[Row], ratio: Interval) -> None:
        self.rows, self.ratio = rows, ratio

    def over(
        self, one: tuple[str, str], other: tuple[str, str], clock: str = "us"
    ) -> Interval:
        """The same for all."""
        return self.ratio


@pytest.fixture
def words(
    random_world: SmallWorld,
    informed_table: CostTable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> list[str]:
    """A command over three prompts of a random world."""
    read_random(monkeypatch, random_world)
    plan = Plan(prompts=3, tokens=6, workloads=("prose",))
    traces = write_trace(tmp_path / "t.parquet", plan)
    save_table(informed_table, tmp_path / "table.json")
    found = ["nowhere", str(traces), "--table", str(tmp_path / "table.json")]
    found += ["--prompts", "3", "--workload", "prose"]
    return [*found, "--out", str(tmp_path / "clock.json")]


def test_everything_is_measured(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under each budget and at each batch; lossless without one."""
    asked = ["--budget", "mass 3", "--budget", "top-k 2", "--batch", "1"]
    assert main([*words, *asked, "--batch", "2"]) == 0
    found = json.loads((tmp_path / "clock.json").read_text())
    assert [each["place"]["batch"] for each in found] == [1, 2]
    for each in found:
        assert len(each["rows"]) == 1 + 3 * 4 and len(each["says"]) >= 6
        by_name = {(row["cut"], row["budget"]): row for row in each["rows"]}
        assert by_name[AR, "none"]["over_plain"]["value"] == 1.0
        assert by_name[FULL_TREE, "top-k 2"]["union"] == 2.0
        assert by_name[FULL_TREE, "top-k 2"]["agrees"]["value"] < 1.0
        assert by_name[DEPTH_LINKS, "mass 3"]["union"] <= 3.0
        for (_, budget), row in by_name.items():
            assert budget != "none" or row["agrees"]["value"] == 1.0
    assert "| plain decoding | none | 1.00 |" in capsys.readouterr().out


def test_an_engine_that_is_not_lossless_is_noticed(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Numbers are kept, and the command fails."""

    class Fooled(Judge):
        def judge(self, texts: list[Text]) -> Interval:
            return Interval(0.99, 0.98, 1.0)

    monkeypatch.setattr(budgets_clock, "Judge", Fooled)
    assert main(words) == 1
    assert "CHECK FAILED: “plain decoding” is lossless" in capsys.readouterr().out
    assert (tmp_path / "clock.json").is_file()


@pytest.mark.parametrize("budget", ["mass 1", "mass 8", "nonsense 4"])
def test_a_bad_budget_is_refused(
    words: list[str], budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, and exit code 2."""
    assert main([*words, "--budget", budget]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_trace_that_was_sampled_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing in it was decoded greedily."""
    write_trace(Path(words[1]), Plan(prompts=3, tokens=6, temperatures=(1.0,)))
    assert main(words) == 2
    assert "temperature" in capsys.readouterr().err


def test_a_workload_that_is_not_there_is_refused_at_once(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the one that is there is decoded."""
    assert main([*words, "--workload", "nothing"]) == 2
    said = capsys.readouterr()
    assert "nothing" in said.err and not said.out
    assert not list(tmp_path.glob("clock.json*"))


@pytest.mark.parametrize("option", ["--table", "traces"])
def test_what_is_read_is_not_written_over(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before any work; the file stays as it is."""
    read = Path(words[1 if option == "traces" else words.index(option) + 1])
    before = read.read_bytes()
    assert main([*words, "--out", str(read)]) == 2
    assert "would change" in capsys.readouterr().err
    assert read.read_bytes() == before


def test_too_few_prompts_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Others than those traced would be decoded."""
    assert main([*words, "--prompts", "2"]) == 2
    assert "that it was traced with" in capsys.readouterr().err


def test_the_best_of_each_kind_are_compared() -> None:
    """A whole tree is no truncation; a whole tree in a budget is that budget alone."""
    rows = [
        speed(AR, "none", 1.0),
        speed(FULL_TREE, "none", 1.9),
        speed("narrow", "none", 1.2),
        speed(FULL_TREE, "mass 8", 1.1),
        speed("narrow", "mass 8", 1.3),
        speed("narrow", "mass 4", 1.25),
    ]
    says = list(Made(rows, Interval(1.1, 1.05, 1.15)).says())
    assert "truncation alone is “narrow” at 1.20" in says[0]
    assert "a budget alone is “full tree” within mass 8 at 1.10" in says[1]
    assert "both is “narrow” within mass 8 at 1.30" in says[2]
    assert len(says) == 6


def test_without_budgets_truncation_stands_alone() -> None:
    """And is compared with nothing."""
    rows = [speed(AR, "none", 1.0), speed("narrow", "none", 1.2)]
    assert len(list(Made(rows, ONE).says())) == 1


def test_speeds_are_compared_by_the_clock_that_is_asked_for() -> None:
    """Twice the tokens in the same CPU time, in twice the wall time."""

    def measured(tokens: float) -> Measured:
        return Measured([[tokens, 1.0, tokens, *[1.0] * 7]] * 4, 2, 0.0)

    outcome = Outcome([], {}, None)  # type: ignore[arg-type]
    outcome.measured = {("a", "none"): measured(2.0), ("b", "none"): measured(1.0)}
    ratio = outcome.over(("a", "none"), ("b", "none"))
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert outcome.over(("a", "none"), ("b", "none"), "wall_us").value == 1.0
