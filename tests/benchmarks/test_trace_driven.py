"""Policies walked over a trace at measured prices, and what is refused."""

from pathlib import Path

import pytest

from benchmarks.measured_prices import Forwards
from benchmarks.trace_driven import Stage, as_runtime, main
from evict_profile.replay.cell import MIXED, Place
from evict_profile.replay.policies import AR, ORACLE, RATE, RATE_DEPTH
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from tests.benchmarks.conftest import Scripted
from tests.traces.synthetic import Plan, write_trace


def test_all_policies_are_walked(
    scripted: Scripted, trace: Trace, informed_table: CostTable
) -> None:
    """Those that read a table as well; nobody beats who knows what is accepted."""
    made, model = as_runtime(informed_table), informed_table.model
    forwards = Forwards(scripted.measure, model, model.moe_layers, 64)
    cell = Stage(made, forwards, 0.1).cell(trace, Place(MIXED, 0.0, 1))
    assert cell.of(AR).over[AR].value == 1.0
    assert all(cell.has(policy) for policy in (RATE, RATE_DEPTH, ORACLE))
    best = cell.of(ORACLE).tokens_per_s.value
    assert all(each.tokens_per_s.value <= best for each in cell.standings)
    assert len(scripted.asked) == len(set(scripted.asked))


def test_a_table_of_another_model_is_refused(
    saved_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, and exit code 2."""
    traces = write_trace(tmp_path / "t.parquet", Plan(prompts=4, tokens=4))
    words = [str(traces), "--table", str(saved_table), "--model", "qwen3-30b-a3b"]
    words += ["--out", str(tmp_path / "driven.json")]
    assert main([*words, "--draft-share", "0.1"]) == 2
    assert "--table prices" in capsys.readouterr().err


@pytest.mark.parametrize("layers", ["0", "many"])
def test_layers_are_a_number_or_auto(layers: str) -> None:
    """Refused by argparse, with exit code 2."""
    words = ["t.parquet", "--table", "t.json", "--draft-share", "0.1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--layers", layers])
    assert ended.value.code == 2
