"""Which tables of a tree are rechecked, and what becomes of the answers."""

import shutil
from unittest.mock import Mock

import pytest

from evict_profile.errors import DataError
from evict_profile.fleet import recheck
from evict_profile.fleet.recheck import newest_tables
from evict_profile.records import replace
from evict_profile.table import CostTable, tables_in
from tests.command import evict


@pytest.fixture
def tree(saved_table, composed_path, tmp_path):
    """Two versions, a composed table, JSON of something else, and damaged ones."""
    home = tmp_path / "tree/gpu/model/engine"
    home.mkdir(parents=True)
    table = CostTable.load(saved_table)
    for version in ("1.0.9", "1.0.10"):
        replace(table, version=version).save(home / f"{version}.json")
    (home / "notes.json").write_text("{}")
    (home / "1.0.11.json").write_text("{")
    shutil.copy(composed_path, home.parent / "1.0.0.json")
    return home


def test_the_newest_measured_table_of_each_key_is_rechecked(tree):
    assert list(newest_tables(tables_in([tree]))) == [tree / "1.0.10.json"]
    with pytest.raises(DataError, match="no measured table"):
        newest_tables(())


@pytest.mark.parametrize(
    ("device", "status", "words", "exit_code"),
    [
        ("gpu avx512", 0, "same within 2%", 0),
        ("gpu avx512", 1, "drifted, all cells by +9%", 1),
        ("gpu avx512", 2, "error: this is not what the table was measured on", 1),
        ("another", 1, "this machine has no another", 0),
        ("NVIDIA L4", 0, "same within 2%", 0),
        ("NVIDIA L40S", 1, "this machine has no NVIDIA L40S", 0),
    ],
)
def test_exit_codes_say_what_a_recheck_found(
    tree, tmp_path, monkeypatch, device, status, words, exit_code
):
    (tree / "1.0.11.json").unlink()
    [(path, table)] = newest_tables(tables_in([tree])).items()
    replace(table, key=replace(table.key, gpu=device)).save(path)
    run = Mock(return_value=(status, words))
    monkeypatch.setattr(recheck, "cpu_name", lambda: "gpu")
    monkeypatch.setattr(recheck, "gpu_names", lambda: ("NVIDIA L4",))
    monkeypatch.setattr(recheck, "run_command", run)
    done = evict("check", "tree", "--recheck", "--python", "p", folder=tmp_path)
    assert done.exit_code == exit_code
    assert f"{path}: {words}" in done.stdout
    own = ["check", str(path), "--recheck", "--python", "p"]
    asked = [call.args[0] for call in run.call_args_list]
    assert asked == ([] if "has no" in words else [own])


def test_a_damaged_table_fails_and_stops_no_other(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(recheck, "cpu_name", lambda: "a test")
    monkeypatch.setattr(recheck, "run_command", lambda *_: (0, "same within 2%"))
    done = evict("check", "tree", "--recheck", folder=tmp_path)
    assert done.exit_code == 1
    assert "not a table: " in done.stdout and "same within 2%" in done.stdout
