"""Each engine reads the draft length of every batch as it was chosen."""

import json
import shlex
from pathlib import Path

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.exporters import (
    SCHEDULES,
    ExportOptions,
    file_name,
    schedule_command,
    write_format,
)
from evict_profile.table import CostTable
from tests.exported import READERS, write_schedule

RATE = of_rate(0.7)


@pytest.fixture(scope="module")
def table(composed_path: Path) -> CostTable:
    """Composed, of batches 1 and 4."""
    return CostTable.load(composed_path)


@pytest.mark.parametrize("name", SCHEDULES.values())
def test_every_batch_drafts_what_was_chosen(
    table: CostTable, tmp_path: Path, name: str
) -> None:
    """And nothing beyond the batches that were priced."""
    written = write_schedule(table, name, tmp_path / file_name(name), 0.7)
    for batch, drafts in (written.chosen | {10_000: 0}).items():
        assert READERS[name](written.content, batch) == drafts
    assert str(written.path) in written.made.command or name == "vllm-schedule"
    assert any("ASSUMED" in note for note in written.made.notes)


def test_vllms_command_holds_the_whole_config(table: CostTable, tmp_path: Path) -> None:
    written = write_schedule(table, "vllm-schedule", tmp_path / "s.json", 0.7)
    config, fields = json.loads(shlex.split(written.made.command)[-1]), written.content
    del fields["evict_profile"]
    assert fields.items() <= config.items()
    assert config["num_speculative_tokens"] == max(written.chosen.values())


def test_trtllm_begins_with_its_longest_draft(table: CostTable, tmp_path: Path) -> None:
    """It refuses a longer one, and a YAML with fields that it does not know."""
    path = tmp_path / "s.yaml"
    content = write_schedule(table, "trtllm-schedule", path, 0.7).content
    config = content["speculative_config"]
    lengths = config["draft_len_schedule"]
    assert list(content) == ["speculative_config"]
    assert lengths[min(lengths)] == config["max_draft_len"] == max(lengths.values())
    assert all(type(key) is int for key in lengths)


@pytest.mark.parametrize("name", SCHEDULES.values())
def test_a_schedule_needs_acceptance_and_a_gain(table: CostTable, name: str) -> None:
    with pytest.raises(ConfigError, match="needs acceptance"):
        write_format(table, name, Path("x"), ExportOptions())
    poor = ExportOptions(lengths=of_rate(0.01))
    with pytest.raises(TableError, match="do not speculate"):
        write_format(table, name, Path("x"), poor)


@pytest.mark.parametrize("name", SCHEDULES.values())
def test_more_requests_than_were_priced_are_refused(
    table: CostTable, tmp_path: Path, name: str
) -> None:
    largest = max(table.axes.batch)
    within = ExportOptions(lengths=RATE, most_requests=largest)
    write_format(table, name, tmp_path / "x", within)
    beyond = ExportOptions(lengths=RATE, most_requests=largest + 1)
    with pytest.raises(TableError, match=f"priced up to batch {largest}"):
        write_format(table, name, tmp_path / "y", beyond)


def test_another_engines_table_is_marked(table: CostTable, tmp_path: Path) -> None:
    """This one was composed for SGLang."""
    asked = ExportOptions(lengths=RATE)
    own = write_format(table, "sglang-adaptive", tmp_path / "a", asked)
    other = write_format(table, "vllm-schedule", tmp_path / "b", asked)
    assert not any("not of sglang" in note for note in own.notes)
    assert any("not of vllm" in note for note in other.notes)


def test_advice_names_the_engines_own_schedule(table: CostTable) -> None:
    told = schedule_command(table, RATE)
    assert "--format sglang-adaptive --rate 0.7 --out FILE" in told
    assert "sglang.launch_server" in told
