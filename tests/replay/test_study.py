"""The whole replay, and the command that starts it."""

import json
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from evict_profile import cli
from evict_profile.errors import ConfigError, TraceError
from evict_profile.records import replace
from evict_profile.replay.policies import FULL_TREE
from evict_profile.replay.study import SCHEMA, ReplayOptions, study
from evict_profile.table import CostTable
from evict_profile.traces import About
from evict_profile.traces.synthetic import synthetic_trace
from tests.replay.conftest import PRICED
from tests.traces.synthetic import Plan, write_trace


@pytest.mark.slow
def test_command_writes_verdict_page_and_numbers(
    trace_file: Path, saved_table: Path, tmp_path: Path
) -> None:
    """On a table without calibration, at two batch sizes."""
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    words = (
        "replay", trace_file, "--table", saved_table, "--batch", 1, "--batch", 2,
        "--seeds", 2, "--out", page, "--json", numbers,
    )  # fmt: skip
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == 0, done.stderr
    assert "replaying mixed, temperature 0, batch 2" in done.stderr
    assert "against plain decoding" in done.stdout
    assert "page.html" in done.stdout
    assert "<svg" in page.read_text()
    found = json.loads(numbers.read_text())
    assert found["schema"] == SCHEMA
    assert len(found["comparisons"]) == len(found["verdicts"]) == 6
    assert found["summary"] in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workload", "poems"), "it holds code at 0, prose at 0"),
        (("--batch", "0"), "--batch 0 is none; give 1 or more"),
        (("--seeds", "0"), "--seeds 0 is none; give 1 or more"),
        (("--batch", "1", "--batch", "1"), "name each once"),
        (("--other-table", "none.json"), "none.json: cannot be read"),
        (("--other-table", "o.json", "--out", "o.parquet"), "this command reads"),
        (("--json", ""), "is a folder"),
    ],
)
def test_mistakes_are_one_sentence(
    trace_file: Path,
    saved_table: Path,
    words: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And exit code 2, with no traceback: nothing else is raised."""
    call = ["evict-profile", "replay", trace_file, "--table", saved_table, *words]
    monkeypatch.setattr(sys, "argv", [str(word) for word in call])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_tables_samples_are_not_written_over(
    trace_file: Path,
    saved_table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Though nobody named them."""
    samples = saved_table.with_suffix(".parquet")
    before = samples.read_bytes()
    call = ["evict-profile", "replay", trace_file, "--table", saved_table]
    monkeypatch.setattr(sys, "argv", [*map(str, call), "--json", str(samples)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "1.0.0.parquet, which this command reads" in capsys.readouterr().err
    assert samples.read_bytes() == before


def test_a_synthetic_mix_is_replayed_like_a_trace(saved_table: Path) -> None:
    """Without routes, which is said."""
    few = partial(synthetic_trace, prompts=5, tokens=6)
    with patch("evict_profile.replay.study.synthetic_trace", few):
        options = ReplayOptions(None, saved_table, (1,), (), 1, synthetic="bursts")
        found = study(options, lambda _: None)
    assert found.traces == "synthetic"
    assert [each.scenario.workload for each in found.comparisons] == ["bursts"]
    assert any("no routes" in each for each in found.comparisons[0].caveats)


@pytest.mark.parametrize(
    ("traces", "mix", "message"),
    [
        (None, "", "either a trace file, or --synthetic"),
        (Path("t.parquet"), "easy", "either a trace file, or --synthetic"),
        (None, "poems", "no synthetic mix is called 'poems'"),
    ],
)
def test_a_trace_or_a_mix_is_needed(
    saved_table: Path, traces: Path | None, mix: str, message: str
) -> None:
    """One of them, and one that there is."""
    options = ReplayOptions(traces, saved_table, (1,), (), 1, synthetic=mix)
    with pytest.raises(ConfigError, match=message):
        study(options, lambda _: None)


def test_only_the_workloads_asked_for_are_replayed(
    trace_file: Path, saved_table: Path
) -> None:
    """One alone has no mix."""
    options = ReplayOptions(trace_file, saved_table, (1,), ("prose",), seeds=2)
    found = study(options, lambda _: None)
    assert [each.scenario.workload for each in found.comparisons] == ["prose"]
    assert found.wrong_tables[0].scenario == found.comparisons[0].scenario


def test_unbounded_intervals_are_null(tmp_path: Path, saved_table: Path) -> None:
    """JSON knows no infinity."""
    few = Plan(prompts=2, tokens=8, workloads=("code",), about=PRICED)
    options = ReplayOptions(
        write_trace(tmp_path / "few.parquet", few), saved_table, (1,), (), 2
    )
    found = study(options, lambda _: None)
    interval = json.loads(found.as_json())["comparisons"][0]["results"][0][
        "tokens_per_s"
    ]
    assert interval["low"] is interval["high"] is None
    assert interval["value"] > 0.0


def test_drafting_is_charged_at_the_speed_of_the_tables_machine(
    saved_table: Path, tmp_path: Path
) -> None:
    """A recorder twice as slow at its reference work drafts twice as fast there."""
    table = CostTable.load(saved_table)
    provenance = replace(table.provenance, reference_us=100.0)
    path = tmp_path / "clocked.json"
    replace(table, provenance=provenance).save(path)
    about = replace(PRICED, engine=table.key.engine)
    slow = replace(about, reference_us=200.0)

    def draft_us(about: About) -> float:
        plan = Plan(prompts=2, tokens=8, workloads=("code",), about=about)
        trace = write_trace(tmp_path / "trace.parquet", plan)
        found = study(ReplayOptions(trace, path, (1,), (), 1), lambda _: None)
        return found.comparisons[0].of(FULL_TREE).draft_us.value

    assert draft_us(slow) == pytest.approx(0.5 * draft_us(about))


def test_a_table_of_another_model_is_refused(saved_table: Path, tmp_path: Path) -> None:
    """Its experts are not those that were woken."""
    other = write_trace(tmp_path / "other.parquet", Plan(prompts=1, tokens=4))
    with pytest.raises(TraceError, match="give the table of the model"):
        study(ReplayOptions(other, saved_table, (1,), (), 2), lambda _: None)


def test_a_batch_beyond_the_table_is_refused(
    trace_file: Path, saved_table: Path
) -> None:
    """Before any replay, with the most that can be priced."""
    most = CostTable.load(saved_table).fit.domain["tokens"][1] // 2
    with pytest.raises(ConfigError, match=f"--batch 100000.*give {most} at most"):
        study(ReplayOptions(trace_file, saved_table, (100000,), (), 2), lambda _: None)


def test_a_study_says_what_cannot_be(trace_file: Path, saved_table: Path) -> None:
    """As the command does, to those who call it."""
    with pytest.raises(ConfigError, match="batch"):
        study(ReplayOptions(trace_file, saved_table, (), (), 2), lambda _: None)
    with pytest.raises(TraceError, match="poems"):
        study(
            ReplayOptions(trace_file, saved_table, (1,), ("poems",), 2), lambda _: None
        )
